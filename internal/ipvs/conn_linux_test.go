package ipvs

import (
	"errors"
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// Open works, or says that the kernel has no IPVS.
func TestOpen(t *testing.T) {
	c, err := Open()
	if err != nil {
		if !errors.Is(err, ErrMissing) {
			t.Errorf("got error %v, want none or ErrMissing", err)
		}
		return
	}
	testenv.CloseAtEnd(t, c)
}
