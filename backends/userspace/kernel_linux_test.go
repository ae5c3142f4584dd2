package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// someWay is a way that only remembers.
type someWay struct {
	is    map[nfnetlink.Family]routesState
	fails error // whatever is to be done
	lacks error // after something was added
}

func (w *someWay) state(fam nfnetlink.Family) (routesState, error) { return w.is[fam], w.fails }

func (w *someWay) add(fam nfnetlink.Family) error {
	w.is[fam] = routesComplete
	return errors.Join(w.fails, w.lacks)
}

func (w *someWay) remove(fam nfnetlink.Family) error {
	if w.fails == nil {
		w.is[fam] = routesAbsent
	}
	return w.fails
}

// kernelIn gives the edge to the kernel in a namespace, with some way in the place of
// routing.
func kernelIn(t *testing.T) (*kernel, *someWay) {
	t.Helper()
	b := netnstest.Open(t, netnstest.NewNS(t), func() (*Backend, error) { return New(Options{}) })
	k, ok := b.kernel.(*kernel)
	if !ok {
		t.Fatalf("got %T, want a kernel", b.kernel)
	}
	w := &someWay{is: map[nfnetlink.Family]routesState{}}
	k.routes = w
	if err := k.monitor.Begin(); err != nil {
		t.Fatal(err)
	}
	return k, w
}

// What a commit has made of routing before the kernel refused the rest is taken back,
// and only that: what was there, stays.
func TestRoutingIsTakenBack(t *testing.T) {
	refused := op{Kind: backends.Remove, Key: key{kind: kindChain, fam: nfnetlink.IPv4, name: "none"}}
	routing := func(kind backends.OpKind, fam nfnetlink.Family) op {
		return op{Kind: kind, Key: key{kind: kindRouting, fam: fam}}
	}
	k, w := kernelIn(t)
	w.is[nfnetlink.IPv6] = routesPartial
	err := k.Commit(t.Context(), []op{routing(backends.Add, nfnetlink.IPv4), routing(backends.Replace, nfnetlink.IPv6), refused})
	if !errors.Is(err, backends.ErrConflict) {
		t.Errorf("got error %v, want one that is %v", err, backends.ErrConflict)
	}
	if four, six := w.is[nfnetlink.IPv4], w.is[nfnetlink.IPv6]; four != routesAbsent || six != routesComplete {
		t.Errorf("after a commit that was refused, routing of IPv4 is %d and that of IPv6 %d, want %d and %d", four, six, routesAbsent, routesComplete)
	}
	if got := k.Operations(); got != 0 {
		t.Errorf("%d operations are counted, want none", got)
	}
	w.lacks = unix.EPERM
	if err := k.Commit(t.Context(), []op{routing(backends.Add, nfnetlink.IPv4)}); !errors.Is(err, proxy.ErrUnsupported) || !errors.Is(err, unix.EPERM) {
		t.Errorf("without the right to do so: got error %v, want one that is %v", err, proxy.ErrUnsupported)
	}
	if got := w.is[nfnetlink.IPv4]; got != routesAbsent {
		t.Errorf("without the right to do all of it, routing is %d, want %d", got, routesAbsent)
	}
}

// Replacing everything while the kernel is short of memory changes nothing: tables and
// routing stay, and no smaller commit is tried.
func TestReplacingWithoutMemory(t *testing.T) {
	const fam = nfnetlink.IPv4
	k, w := kernelIn(t)
	all := []op{{Kind: backends.Add, Key: key{kind: kindRouting, fam: fam}}, {Kind: backends.Add, Key: key{kind: kindTable, fam: fam}}}
	if err := k.Commit(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	commit := k.transact
	k.transact = func(context.Context, *nfnetlink.Batch) error {
		return &nfnetlink.Error{Op: "commit", Errno: unix.ENOMEM}
	}
	if yes, _ := k.Replace(t.Context(), proxy.Snapshot{}, true); !yes {
		t.Fatal("Replace says no where it must not")
	}
	if err := k.Commit(t.Context(), all); !errors.Is(err, backends.ErrUnavailable) || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("got error %v, want one that is %v and %v", err, backends.ErrUnavailable, unix.ENOMEM)
	}
	if got := w.is[fam]; got != routesComplete {
		t.Errorf("routing is %d, want %d as before", got, routesComplete)
	}
	if exists, _, err := k.exists(t.Context(), fam); err != nil || !exists {
		t.Errorf("the table exists: %t (error %v), want it as before", exists, err)
	}
	k.transact = commit
	if err := k.Commit(t.Context(), all); err != nil {
		t.Errorf("with memory again: got error %v, want none", err)
	}
}

// If routing cannot be taken away when the tables are gone, nobody knows any more
// what there is.
func TestRoutingThatStays(t *testing.T) {
	k, w := kernelIn(t)
	gone := []op{{Kind: backends.Remove, Key: key{kind: kindRouting, fam: nfnetlink.IPv4}}}
	w.is[nfnetlink.IPv4] = routesComplete
	if err := k.Commit(t.Context(), gone); err != nil || w.is[nfnetlink.IPv4] != routesAbsent {
		t.Errorf("got error %v and state %d, want routing to be gone", err, w.is[nfnetlink.IPv4])
	}
	w.fails = syscall.EIO
	if err := k.Commit(t.Context(), gone); !errors.Is(err, proxy.ErrDataplaneLost) || !errors.Is(err, syscall.EIO) {
		t.Errorf("got error %v, want one that is %v, and %v", err, proxy.ErrDataplaneLost, syscall.EIO)
	}
}

// Cleanup takes away what is left of routing, however little it is.
func TestCleanupOfRemains(t *testing.T) {
	for _, state := range []routesState{routesPartial, routesComplete} {
		k, w := kernelIn(t)
		w.is[nfnetlink.IPv4], w.is[nfnetlink.IPv6] = state, state
		if err := k.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.is; got[nfnetlink.IPv4] != routesAbsent || got[nfnetlink.IPv6] != routesAbsent {
			t.Errorf("after Cleanup of what was %d, routing is %v, want nothing", state, got)
		}
		if got := k.Operations(); got != 2 {
			t.Errorf("%d operations are counted, want 2", got)
		}
	}
}

// A way that replaces another one is as it should be only without that, and takes it
// along.
func TestOneWayInsteadOfAnother(t *testing.T) {
	const fam = nfnetlink.IPv4
	for _, c := range []struct{ own, other, want routesState }{
		{routesAbsent, routesAbsent, routesAbsent},
		{routesComplete, routesAbsent, routesComplete},
		{routesPartial, routesAbsent, routesPartial},
		{routesComplete, routesPartial, routesPartial},
		{routesAbsent, routesComplete, routesPartial},
	} {
		own, other := &someWay{is: map[nfnetlink.Family]routesState{fam: c.own}}, &someWay{is: map[nfnetlink.Family]routesState{fam: c.other}}
		w := instead{own, []way{other}}
		if got, err := w.state(fam); err != nil || got != c.want {
			t.Errorf("one is %d and the other %d: got %d and error %v, want %d", c.own, c.other, got, err, c.want)
		}
		for what, do := range map[routesState]func(nfnetlink.Family) error{routesComplete: w.add, routesAbsent: w.remove} {
			own.is[fam], other.is[fam] = c.own, c.other
			if err := do(fam); err != nil || own.is[fam] != what || other.is[fam] != routesAbsent {
				t.Errorf("one is %d and the other %d: got %d and %d, error %v, want %d and none", c.own, c.other, own.is[fam], other.is[fam], err, what)
			}
		}
	}
}

// Ways of which all are needed are complete when all are, and there as long as one is.
func TestWaysTogether(t *testing.T) {
	const fam = nfnetlink.IPv4
	for _, c := range []struct{ one, two, want routesState }{
		{routesAbsent, routesAbsent, routesAbsent},
		{routesComplete, routesComplete, routesComplete},
		{routesComplete, routesAbsent, routesPartial},
		{routesAbsent, routesComplete, routesPartial},
		{routesPartial, routesPartial, routesPartial},
	} {
		one, two := &someWay{is: map[nfnetlink.Family]routesState{fam: c.one}}, &someWay{is: map[nfnetlink.Family]routesState{fam: c.two}}
		w := together{one, two}
		if got, err := w.state(fam); err != nil || got != c.want {
			t.Errorf("one is %d and the other %d: got %d and error %v, want %d", c.one, c.two, got, err, c.want)
		}
		if err := w.add(fam); err != nil || one.is[fam] != routesComplete || two.is[fam] != routesComplete {
			t.Errorf("one was %d and the other %d: got %d and %d, error %v", c.one, c.two, one.is[fam], two.is[fam], err)
		}
		if err := w.remove(fam); err != nil || one.is[fam] != routesAbsent || two.is[fam] != routesAbsent {
			t.Errorf("after all is removed: got %d and %d, error %v", one.is[fam], two.is[fam], err)
		}
		one.fails = syscall.EIO
		if _, err := w.state(fam); !errors.Is(err, syscall.EIO) {
			t.Errorf("got error %v, want %v", err, syscall.EIO)
		}
		two.is[fam] = routesComplete
		if err := w.remove(fam); !errors.Is(err, syscall.EIO) || two.is[fam] != routesAbsent {
			t.Errorf("got error %v and the other one %d, want %v and it to be gone", err, two.is[fam], syscall.EIO)
		}
		if err := w.add(fam); !errors.Is(err, syscall.EIO) {
			t.Errorf("got error %v, want %v", err, syscall.EIO)
		}
	}
}

// What the kernel says is told to callers in terms that they can act on.
func TestWhatErrorsMean(t *testing.T) {
	for _, c := range []struct {
		op   string
		is   error
		want error
	}{
		{"add element", nfnetlink.ErrUnknownOutcome, proxy.ErrDataplaneLost},
		{"add element", unix.EPERM, proxy.ErrUnsupported},
		{"add rule", unix.ENOENT, proxy.ErrUnsupported},
		{"add rule", unix.EOPNOTSUPP, proxy.ErrUnsupported},
		{"add rule", unix.EEXIST, backends.ErrConflict},
		{"add element", unix.ENOENT, backends.ErrConflict},
		{"add element", unix.EEXIST, backends.ErrConflict},
		{"delete chain", unix.EBUSY, backends.ErrConflict},
		{"add set", unix.EOPNOTSUPP, proxy.ErrUnsupported},
		{"add table", unix.EAFNOSUPPORT, proxy.ErrUnsupported},
		{"add chain", unix.EPROTONOSUPPORT, proxy.ErrUnsupported},
		{"add element", unix.ENOMEM, backends.ErrExhausted},
		{"add element", unix.ENOBUFS, backends.ErrExhausted},
		{"add element", unix.EINVAL, nil},
	} {
		err := c.is
		if errno, is := c.is.(unix.Errno); is { //nolint:errorlint // it is one, or something else
			err = &nfnetlink.Error{Op: c.op, Errno: errno}
		}
		got := explain(fmt.Errorf("commit: %w", err))
		var means []error
		for _, known := range []error{proxy.ErrDataplaneLost, proxy.ErrUnsupported, backends.ErrConflict, backends.ErrExhausted} {
			if errors.Is(got, known) {
				means = append(means, known)
			}
		}
		if !errors.Is(got, c.is) || c.want == nil && means != nil || c.want != nil && !slices.Equal(means, []error{c.want}) {
			t.Errorf("%s: %v: got %v, want one that means %v alone", c.op, c.is, got, c.want)
		}
	}
	if got := explain(nil); got != nil {
		t.Errorf("without an error: got %v", got)
	}
}

// The rules of a chain are known again only if they are all there, in their order,
// and nothing else is.
func TestChainsAreKnownAgain(t *testing.T) {
	const hash = 0xabc
	own := chainTag("services", nfnetlink.BaseChain{})
	one, two := tag(own, hash, 0, 2), tag(own, hash, 1, 2)
	for name, c := range map[string]struct {
		comments []string
		want     uint64
	}{
		"nothing":              {nil, 0},
		"all rules":            {[]string{one, two}, hash},
		"the last is missing":  {[]string{one}, 0},
		"the first is missing": {[]string{two}, 0},
		"out of order":         {[]string{two, one}, 0},
		"twice the same":       {[]string{one, one}, 0},
		"a foreign one":        {[]string{one, "", two}, 0},
		"a foreign one last":   {[]string{one, two, ""}, 0},
		"of two chains":        {[]string{one, tag(own, hash+1, 1, 2)}, 0},
	} {
		if got, moved := hashOf(own, c.comments); got != c.want || moved {
			t.Errorf("%s: got %x, want %x", name, got, c.want)
		}
	}
}

// What is not there any more need not be removed; what cannot be removed is no such
// thing.
func TestWhatIsGone(t *testing.T) {
	h := netnstest.NewNS(t).Netlink()
	r := &routes{handle: h, mark: backends.DefaultMark}
	lost := &localRoutes{handle: h, number: r.number()}
	nowhere, err := lost.route(netip.MustParsePrefix("192.0.2.1/32"), unix.RTN_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"a rule": h.RuleDel(r.rule(nfnetlink.IPv4)), "a route": h.RouteDel(nowhere), "nothing": nil} {
		if !isGone(err) {
			t.Errorf("%s that is not there: got error %v, and it is still there", what, err)
		}
	}
	for _, err := range []error{unix.EPERM, unix.EBUSY, unix.EINVAL} {
		if isGone(err) {
			t.Errorf("%v: it is not there any more", err)
		}
	}
}
