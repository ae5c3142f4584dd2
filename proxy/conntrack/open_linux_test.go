package conntrack

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// New fails without CAP_NET_ADMIN, rather than the first Clean.
func TestNewNeedsPrivileges(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	var got error
	if err := ns.Do(func() error {
		return withoutNetAdmin(func() error {
			c, err := New(Options{})
			if got = err; err == nil {
				return c.Close()
			}
			return nil
		})
	}); err != nil {
		t.Fatal(err)
	}
	if got == nil || !strings.Contains(got.Error(), "CAP_NET_ADMIN is needed") {
		t.Errorf("New without CAP_NET_ADMIN: got error %v, want that it is needed", got)
	}
}

// withoutNetAdmin runs f without CAP_NET_ADMIN on the calling thread.
func withoutNetAdmin(f func() error) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before [2]unix.CapUserData
	if err := unix.Capget(&header, &before[0]); err != nil {
		return err
	}
	without := before
	without[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &without[0]); err != nil {
		return err
	}
	return errors.Join(f(), unix.Capset(&header, &before[0]))
}
