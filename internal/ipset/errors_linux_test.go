package ipset

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/rawnetlink"
	"github.com/vipkit/vipkit/internal/testenv"
)

// A type that the kernel does not have is unsupported.
func TestUnknownType(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.revision(t.Context(), &Set{Name: "a", Type: "hash:none"})
	wantError(t, err, ErrUnsupported, "type")
}

// The kernel answers requests for a subsystem that it lacks with EINVAL; Open relies on it.
func TestUnknownSubsystem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var r rawnetlink.Requests
	r.End(append(r.Begin(unix.NFNL_SUBSYS_COUNT<<8|cmdProtocol, unix.NLM_F_ACK), unix.AF_INET, unix.NFNETLINK_V0, 0, 0))
	wantError(t, w.netlink.Ask(t.Context(), &r, nil), unix.EINVAL)
}

// Without CAP_NET_ADMIN, Open fails with EPERM: ipset is supported.
func TestOpenWithoutPrivileges(t *testing.T) {
	t.Parallel()
	err := netnstest.NewNS(t).Do(func() error {
		runtime.LockOSThread() // ends the thread, which loses the privilege, with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			return err
		}
		data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &data[0]); err != nil {
			return err
		}
		c, err := Open()
		if err != nil {
			return err
		}
		return c.Close()
	})
	wantError(t, err, unix.EPERM)
	if errors.Is(err, ErrUnsupported) {
		t.Errorf("got error %v, want it not to be %v", err, ErrUnsupported)
	}
}

// When nothing can be sent, Do fails.
func TestClosedConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(t, Set{Name: "a", Type: HashIPPort})
	var c *Conn
	err := w.ns.Do(func() (err error) {
		if c, err = Open(); err != nil {
			return err
		}
		return c.Close()
	})
	testenv.NoError(t, err)
	failed, err := c.Do(t.Context(), additions("a", numbered(10_000)...))
	if len(failed) != 0 {
		t.Errorf("Do: got %d failures, want none", len(failed))
	}
	wantError(t, err, unix.EBADF)
	w.wantEntries(t, "a")
}
