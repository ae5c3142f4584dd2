package allocator_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/vipkit/vipkit/allocator"
)

func TestKeysInJSON(t *testing.T) {
	for want, key := range map[string]allocator.Key{
		`{"10.0.0.1":"10.0.0.1"}`: allocator.AddrKey(netip.MustParseAddr("::ffff:10.0.0.1")),
		`{"fd00::1":"fd00::1"}`:   allocator.AddrKey(netip.MustParseAddr("fd00::1")),
		`{"30000":"30000"}`:       allocator.PortKey(30000),
		`{"":""}`:                 {},
	} {
		data, err := json.Marshal(map[allocator.Key]allocator.Key{key: key})
		if string(data) != want || err != nil {
			t.Errorf("%v: got %s, error %v, want %s", key, data, err, want)
		}
		back := map[allocator.Key]allocator.Key{}
		if err := json.Unmarshal(data, &back); err != nil || len(back) != 1 || back[key] != key {
			t.Errorf("%s: got %v, error %v", data, back, err)
		}
	}
	key := allocator.PortKey(1)
	if err := json.Unmarshal([]byte(`"x"`), &key); err == nil || key != allocator.PortKey(1) {
		t.Errorf("a key from x: got %v, error %v, want an error, and the key unchanged", key, err)
	}
}
