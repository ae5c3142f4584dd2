package nftables

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// What callers can act on shows in errors of the kernel: to look again, to give
// up, to blame a port. Nothing is taken for more than it says.
func TestExplain(t *testing.T) {
	refused := func(op string, errno unix.Errno) error {
		return fmt.Errorf("committing: %w", &nfnetlink.Error{Errno: errno, Op: op, Object: "pick-4"})
	}
	all := []error{proxy.ErrDataplaneLost, proxy.ErrUnsupported, backends.ErrConflict, backends.ErrReplace, backends.ErrExhausted}
	for _, c := range []struct {
		err, want error
	}{
		{nfnetlink.ErrUnknownOutcome, proxy.ErrDataplaneLost},
		{unix.EPERM, proxy.ErrUnsupported},
		{refused("add element", unix.EPERM), proxy.ErrUnsupported},
		{refused("add rule", unix.ENOENT), proxy.ErrUnsupported},
		{refused("add rule", unix.EOPNOTSUPP), proxy.ErrUnsupported},
		{refused("add set", unix.EOPNOTSUPP), proxy.ErrUnsupported},
		{refused("add table", unix.EAFNOSUPPORT), proxy.ErrUnsupported},
		{refused("add chain", unix.EPROTONOSUPPORT), proxy.ErrUnsupported},
		{refused("delete element", unix.ENOENT), errors.Join(proxy.ErrDataplaneLost, backends.ErrConflict)},
		{refused("add element", unix.ENOMEM), backends.ErrExhausted},
		{refused("add element", unix.EEXIST), backends.ErrConflict},
		{refused("delete chain", unix.EBUSY), backends.ErrConflict},
		{refused("add element", unix.EINVAL), nil},
		{unix.ENOBUFS, backends.ErrExhausted},
		{errors.New("something else"), nil},
	} {
		got := new(kernel).explain(c.err)
		if !errors.Is(got, c.err) {
			t.Errorf("%v: got %v, which does not hold it", c.err, got)
		}
		for _, e := range all {
			if errors.Is(got, e) != errors.Is(c.want, e) {
				t.Errorf("%v: got %v, want it to hold %v", c.err, got, c.want)
			}
		}
	}
	if err := new(kernel).explain(nil); err != nil {
		t.Errorf("no error: got %v", err)
	}
}

// Slots are taken over only as this package leaves them: every one filled, each
// with another endpoint, and listed once.
func TestFillSlots(t *testing.T) {
	for _, c := range []struct {
		name string
		// listed are pairs: a slot, and the endpoint in it.
		listed [][2]int
		want   bool
	}{
		{"nothing", nil, true},
		{"in order", [][2]int{{0, 7}, {1, 8}, {2, 9}}, true},
		{"in any order", [][2]int{{2, 9}, {0, 7}, {1, 8}}, true},
		{"the first one lacks", [][2]int{{1, 8}}, false},
		{"one between lacks", [][2]int{{0, 7}, {2, 9}}, false},
		{"one listed twice, and one lacks", [][2]int{{0, 7}, {2, 9}, {2, 9}}, false},
		{"one endpoint in two slots", [][2]int{{0, 7}, {1, 8}, {2, 7}}, false},
		{"a slot far away", [][2]int{{0, 7}, {1 << 20, 8}}, false},
	} {
		k, one := &kernel{}, slotKey(0, 0)
		k.forgetSlots()
		var objects []object
		var indexes []uint32
		for _, at := range c.listed {
			objects = append(objects, object{Key: slotKey(0, at[1])})
			indexes = append(indexes, uint32(at[0]))
		}
		if got := (&lister{kernel: k}).fillSlots(objects, indexes); got != c.want {
			t.Errorf("%s: got %t, want %t", c.name, got, c.want)
		}
		if n := len(k.slots[one.slotPool()]); n > len(objects) {
			t.Errorf("%s: there is room for %d slots, want no more than are listed, whatever their numbers", c.name, n)
		}
	}
}
