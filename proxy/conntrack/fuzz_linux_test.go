package conntrack

import (
	"errors"
	"testing"
)

// FuzzDecodeFlow checks that no message makes decodeFlow panic or return half a flow.
func FuzzDecodeFlow(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 4, 0, 1, 128})
	f.Add([]byte{2, 0, 0, 0, 20, 0, 1, 128, 16, 0, 1, 128, 8, 0, 1, 0, 1, 2, 3, 4, 3, 0, 2, 0})
	f.Fuzz(func(t *testing.T, msg []byte) {
		fl, _, err := decodeFlow(msg)
		if err == nil && (!fl.dest.IsValid() || !fl.server.IsValid()) {
			t.Errorf("got flow %+v, want a destination and a server", fl)
		}
		if err != nil && !errors.Is(err, errMalformed) {
			t.Errorf("got error %v, want %v", err, errMalformed)
		}
	})
}
