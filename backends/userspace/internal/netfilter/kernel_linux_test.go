package netfilter

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// testConfig returns the config of a capture.
func testConfig(t *testing.T) Config {
	t.Helper()
	identity, err := backends.Identity{}.Complete(kinds.Userspace.Defaults())
	testenv.NoError(t, err)
	return Config{Identity: identity, Families: bothFamilies()}
}

// captureIn returns a capture in a new namespace.
func captureIn(t *testing.T) *Capture {
	t.Helper()
	c := netnstest.Open(t, netnstest.NewNS(t), func() (*Capture, error) { return New(testConfig(t)) })
	testenv.NoError(t, c.Begin())
	return c
}

// refused returns an operation that the kernel refuses: it removes a chain to which another
// one leads.
func refused(t *testing.T, k *Capture) op {
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
	routing := func(kind backends.OpKind) op {
		return op{Kind: kind, Key: Key{kind: kindRouting, fam: nfnetlink.IPv4}}
	}
	c := captureIn(t)
	refused := refused(t, c)
	before := c.ops.Load()
	if err := c.Commit(t.Context(), []op{routing(backends.Add), refused}).Err(); !errors.Is(err, backends.ErrConflict) {
		t.Errorf("got error %v, want one that is %v", err, backends.ErrConflict)
	}
	if got, err := c.routes.state(v1.IPv4Protocol); err != nil || got != routingComplete {
		t.Errorf("routing after a refused commit: got %d and error %v, want %d", got, err, routingComplete)
	}
	if got := c.ops.Load() - before; got != 0 {
		t.Errorf("operations: got %d, want none", got)
	}
}

// Replacing all tables while the kernel is out of memory changes nothing: tables and routing
// are kept, and no smaller commit is tried.
func TestReplacingWithoutMemory(t *testing.T) {
	t.Parallel()
	const fam = nfnetlink.IPv4
	k := captureIn(t)
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
	if got, err := k.routes.state(v1.IPv4Protocol); err != nil || got != routingComplete {
		t.Errorf("routing: got %d and error %v, want %d as before", got, err, routingComplete)
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
	c := netnstest.Open(t, ns, func() (*Capture, error) { return New(testConfig(t)) })
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

// If the routing of a commit that is divided cannot be removed, the dataplane is lost, also after the first part:
// its transaction is made, and its operations are not carried out.
func TestFailedRemovalOfRouting(t *testing.T) {
	t.Parallel()
	c := captureIn(t)
	routing := func(kind backends.OpKind) (ops []op) {
		for _, fam := range nft.Families() {
			ops = append(ops, op{Kind: kind, Key: Key{kind: kindRouting, fam: fam}})
		}
		return ops
	}
	testenv.NoError(t, c.Commit(t.Context(), routing(backends.Add)).Err())
	runtime.LockOSThread() // for good: the thread, which loses its capabilities, ends with the test
	tooLarge := error(&nfnetlink.SizeError{})
	c.Transact = func(context.Context, *nfnetlink.Batch) (err error) {
		err, tooLarge = tooLarge, nil
		return err
	}
	var none [2]unix.CapUserData
	testenv.NoError(t, unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]))
	if out := c.Commit(t.Context(), routing(backends.Remove)); out.Lost == nil || !errors.Is(out.Lost, unix.EPERM) {
		t.Errorf("got outcome %+v, want a lost state because of %v", out, unix.EPERM)
	}
}
