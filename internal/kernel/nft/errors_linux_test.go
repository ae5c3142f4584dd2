package nft

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Explain adds exactly the errors that callers act on: to resync, to give up, or to find
// the faulty port.
func TestExplain(t *testing.T) {
	t.Parallel()
	refused := func(op string, errno unix.Errno) error {
		return fmt.Errorf("committing: %w", &nfnetlink.Error{Errno: errno, Op: op, Object: "pick-4"})
	}
	ofOthers := &nfnetlink.Error{Errno: unix.EPERM, Op: "add element", Table: nfnetlink.Table{Family: nfnetlink.IPv4, Name: "vipkit"}}
	listing := &nfnetlink.Error{Errno: unix.EPERM, Op: "list chains of", Table: ofOthers.Table}
	all := []error{
		proxy.ErrDataplaneLost, proxy.ErrUnsupported,
		backends.ErrConflict, backends.ErrReplace, backends.ErrUnavailable,
	}
	for _, c := range []struct {
		err, want error
	}{
		{nfnetlink.ErrUnknownOutcome, proxy.ErrDataplaneLost},
		{fmt.Errorf("%w: %w", nfnetlink.ErrUnknownOutcome, unix.ENOBUFS), proxy.ErrDataplaneLost},
		{unix.EPERM, errors.Join(proxy.ErrUnsupported, backends.ErrUnavailable)},
		{refused("add element", unix.EPERM), errors.Join(proxy.ErrUnsupported, backends.ErrUnavailable)},
		{ofOthers, backends.ErrUnavailable},
		{listing, errors.Join(proxy.ErrUnsupported, backends.ErrUnavailable)}, // of a table of another owner, anybody may
		{refused("add element", unix.ENFILE), errors.Join(proxy.ErrDataplaneLost, backends.ErrConflict)},
		{refused("add rule", unix.EEXIST), backends.ErrConflict},
		{&nfnetlink.SizeError{Size: 2, Max: 1}, nil},
		{refused("add rule", unix.ENOENT), proxy.ErrUnsupported},
		{refused("add rule", unix.EOPNOTSUPP), proxy.ErrUnsupported},
		{refused("add set", unix.EOPNOTSUPP), proxy.ErrUnsupported},
		{refused("add table", unix.EAFNOSUPPORT), proxy.ErrUnsupported},
		{refused("add chain", unix.EPROTONOSUPPORT), proxy.ErrUnsupported},
		{refused("add chain", unix.EOPNOTSUPP), backends.ErrConflict},
		{refused("add chain", unix.ENOENT), errors.Join(proxy.ErrDataplaneLost, backends.ErrConflict)},
		{&nfnetlink.Error{Errno: unix.ENOENT, Op: "add chain", Attr: unix.NFTA_CHAIN_TABLE}, errors.Join(proxy.ErrDataplaneLost, backends.ErrConflict)},
		{&nfnetlink.Error{Errno: unix.ENOENT, Op: "add chain", Attr: unix.NFTA_CHAIN_TYPE}, proxy.ErrUnsupported},
		{refused("delete element", unix.ENOENT), errors.Join(proxy.ErrDataplaneLost, backends.ErrConflict)},
		{refused("add element", unix.ENOMEM), nil},
		{refused("add element", unix.EEXIST), backends.ErrConflict},
		{refused("delete chain", unix.EBUSY), backends.ErrConflict},
		{refused("add element", unix.EINVAL), nil},
		{unix.ENOBUFS, nil},
		{errors.New("something else"), nil},
	} {
		got := Explain(c.err)
		if !errors.Is(got, c.err) {
			t.Errorf("Explain(%v): got %v, want it to wrap the error", c.err, got)
		}
		for _, e := range all {
			if errors.Is(got, e) != errors.Is(c.want, e) {
				t.Errorf("Explain(%v): got %v, want it to wrap %v and no other error of backends", c.err, got, c.want)
			}
		}
	}
	if err := Explain(nil); err != nil {
		t.Errorf("Explain(nil): got %v, want nil", err)
	}
}

// A listing that commits of others interrupted each time is no reason to give up: everything is
// made anew. Any other error of a listing means what it means elsewhere.
func TestListed(t *testing.T) {
	t.Parallel()
	err := Listed(fmt.Errorf("%w: list chains", nfnetlink.ErrInterrupted), "the chains")
	if !errors.Is(err, backends.ErrReplace) {
		t.Errorf("interrupted each time: got error %v, want %v", err, backends.ErrReplace)
	}
	if err := Listed(unix.ENOMEM, "the chains"); !errors.Is(err, unix.ENOMEM) || errors.Is(err, backends.ErrReplace) {
		t.Errorf("no memory: got error %v, want %v only", err, unix.ENOMEM)
	}
	if err := Listed(nil, "the chains"); err != nil {
		t.Errorf("no error: got %v", err)
	}
}
