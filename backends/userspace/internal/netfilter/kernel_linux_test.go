package netfilter

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// fakeRouting is a routing in memory.
type fakeRouting struct {
	is    map[v1.IPFamily]routingState
	fails error // error of all methods
	lacks error // error of add, which adds all the same
}

func (r *fakeRouting) state(f v1.IPFamily) (routingState, error) { return r.is[f], r.fails }

func (r *fakeRouting) add(f v1.IPFamily) error {
	r.is[f] = routingComplete
	return errors.Join(r.fails, r.lacks)
}

func (r *fakeRouting) remove(f v1.IPFamily) error {
	if r.fails == nil {
		r.is[f] = routingAbsent
	}
	return r.fails
}

// configIn returns the config of a capture in a namespace.
func configIn(t *testing.T, ns *netns.NS) *host.Config {
	t.Helper()
	identity, err := backends.Identity{}.Complete(kinds.Userspace.Defaults())
	testenv.NoError(t, err)
	return &host.Config{Identity: identity, Families: bothFamilies(), Sockets: netnstest.Open(t, ns, host.OpenSockets)}
}

// kernelIn returns the edge to the kernel in a namespace, with a fake in place of
// routing.
func kernelIn(t *testing.T) (*kernel, *fakeRouting) {
	t.Helper()
	ns := netnstest.NewNS(t)
	config := configIn(t, ns)
	k := netnstest.Open(t, ns, func() (*Capture, error) { return New(config, false) }).kernel
	r := &fakeRouting{is: map[v1.IPFamily]routingState{}}
	k.routes = r
	testenv.NoError(t, k.Begin())
	return k, r
}

// refused returns an operation that the kernel refuses: it removes a chain to which another
// one leads.
func refused(t *testing.T, k *kernel) op {
	t.Helper()
	add := func(kind kind, name string, rules func(*nft.Assembler)) op {
		return op{Kind: backends.Add, Key: Key{kind: kind, fam: nfnetlink.IPv6, name: name}, Payload: &nft.Chain{Rules: rules}}
	}
	if err := k.Commit(t.Context(), []op{
		add(kindTable, "", nil),
		add(kindChain, "used", func(*nft.Assembler) {}),
		add(kindChain, "user", func(a *nft.Assembler) { a.Rule(a.Goto("used")) }),
	}).Err(); err != nil {
		t.Fatal(err)
	}
	return op{Kind: backends.Remove, Key: Key{kind: kindChain, fam: nfnetlink.IPv6, name: "used"}}
}

// If the kernel refuses a commit, the routing that the commit has added stays.
func TestRoutingStays(t *testing.T) {
	t.Parallel()
	routing := func(kind backends.OpKind, fam nfnetlink.Family) op {
		return op{Kind: kind, Key: Key{kind: kindRouting, fam: fam}}
	}
	k, w := kernelIn(t)
	refused := refused(t, k)
	w.is[v1.IPv6Protocol] = routingPartial
	before := k.ops.Load()
	err := k.Commit(t.Context(), []op{routing(backends.Add, nfnetlink.IPv4), routing(backends.Replace, nfnetlink.IPv6), refused}).Err()
	if !errors.Is(err, backends.ErrConflict) {
		t.Errorf("got error %v, want one that is %v", err, backends.ErrConflict)
	}
	if four, six := w.is[v1.IPv4Protocol], w.is[v1.IPv6Protocol]; four != routingComplete || six != routingComplete {
		t.Errorf("routing after a refused commit: got %d for IPv4 and %d for IPv6, want %d for both", four, six, routingComplete)
	}
	if got := k.ops.Load() - before; got != 0 {
		t.Errorf("operations: got %d, want none", got)
	}
	w.lacks = unix.EPERM
	if err := k.Commit(t.Context(), []op{routing(backends.Add, nfnetlink.IPv4)}).Err(); !errors.Is(err, proxy.ErrUnsupported) || !errors.Is(err, unix.EPERM) {
		t.Errorf("without privilege: got error %v, want one that is %v", err, proxy.ErrUnsupported)
	}
}

// Replacing all tables while the kernel is out of memory changes nothing: tables and routing
// are kept, and no smaller commit is tried.
func TestReplacingWithoutMemory(t *testing.T) {
	t.Parallel()
	const fam = nfnetlink.IPv4
	k, w := kernelIn(t)
	all := []op{{Kind: backends.Add, Key: Key{kind: kindRouting, fam: fam}}, {Kind: backends.Add, Key: Key{kind: kindTable, fam: fam}}}
	testenv.NoError(t, k.Commit(t.Context(), all).Err())
	commit := k.Transact
	k.Transact = func(context.Context, *nfnetlink.Batch) error {
		return &nfnetlink.Error{Op: "commit", Errno: unix.ENOMEM}
	}
	r := k.Replace(t.Context(), proxy.Snapshot{}, true)
	if r == nil {
		t.Fatal("Replace: got nil, want a replacement")
	}
	if err := r.Commit(t.Context(), all).Err(); !errors.Is(err, backends.ErrUnavailable) || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("got error %v, want one that is %v and %v", err, backends.ErrUnavailable, unix.ENOMEM)
	}
	if got := w.is[v1.IPv4Protocol]; got != routingComplete {
		t.Errorf("routing: got %d, want %d as before", got, routingComplete)
	}
	if exists, err := k.exists(t.Context(), fam); err != nil || !exists {
		t.Errorf("table exists: got %t and error %v, want it as before", exists, err)
	}
	k.Transact = commit
	if err := r.Commit(t.Context(), all).Err(); err != nil {
		t.Errorf("with memory again: got error %v, want none", err)
	}
}

// While the kernel grows a set in the background, it lists some elements twice, and others not
// at all. List does not return such a listing.
func TestListsWhileSetsGrow(t *testing.T) {
	t.Parallel()
	ns := netnstest.NewNS(t)
	config := configIn(t, ns)
	c := netnstest.Open(t, ns, func() (*Capture, error) { return New(config, false) })
	var ports []*proxy.ServicePort
	for i := range 6000 {
		ports = append(ports, stagetest.Port(v1.IPv4Protocol, i, 1))
	}
	world := proxy.NewSnapshot(stagetest.Node(), ports...)
	for range 20 {
		b := backends.New(c.Render, backends.Target[Key, Value](c))
		testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, world))
		for range 3 {
			seen := map[Key]bool{}
			for o, err := range c.List(t.Context()) {
				testenv.NoError(t, err)
				if seen[o.Key] {
					t.Fatalf("got %+v listed twice, want each object once", o.Key)
				}
				seen[o.Key] = true
			}
		}
		testenv.NoError(t, b.Cleanup(t.Context()))
	}
}

// If removing the routing fails after the tables were removed, the dataplane is lost.
func TestFailedRemovalOfRouting(t *testing.T) {
	t.Parallel()
	k, w := kernelIn(t)
	gone := []op{{Kind: backends.Remove, Key: Key{kind: kindRouting, fam: nfnetlink.IPv4}}}
	w.is[v1.IPv4Protocol] = routingComplete
	if err := k.Commit(t.Context(), gone).Err(); err != nil || w.is[v1.IPv4Protocol] != routingAbsent {
		t.Errorf("got error %v and state %d, want no error and %d", err, w.is[v1.IPv4Protocol], routingAbsent)
	}
	w.fails = syscall.EIO
	if err := k.Commit(t.Context(), gone).Err(); !errors.Is(err, proxy.ErrDataplaneLost) || !errors.Is(err, syscall.EIO) {
		t.Errorf("got error %v, want one that is %v, and %v", err, proxy.ErrDataplaneLost, syscall.EIO)
	}
}

// Cleanup removes complete and partial routing.
func TestCleanupOfPartialRouting(t *testing.T) {
	t.Parallel()
	for _, state := range []routingState{routingPartial, routingComplete} {
		k, w := kernelIn(t)
		w.is[v1.IPv4Protocol], w.is[v1.IPv6Protocol] = state, state
		testenv.NoError(t, k.Cleanup(t.Context()))
		if got := w.is; got[v1.IPv4Protocol] != routingAbsent || got[v1.IPv6Protocol] != routingAbsent {
			t.Errorf("Cleanup of state %d: got routing %v, want none", state, got)
		}
		if got := k.ops.Load(); got != 2 {
			t.Errorf("operations: got %d, want 2", got)
		}
	}
}
