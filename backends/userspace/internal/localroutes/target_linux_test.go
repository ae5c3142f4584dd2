package localroutes

import (
	"errors"
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// captureIn returns a capture of IPv4 and IPv6 in a namespace of its own.
func captureIn(t *testing.T) *Capture {
	t.Helper()
	var c *Capture
	err := netnstest.NewNS(t).Do(func() error {
		s, err := host.OpenSockets()
		if err != nil {
			return err
		}
		testenv.CloseAtEnd(t, s)
		identity, err := backends.Identity{}.Complete(kinds.Userspace.Defaults())
		if err != nil {
			return err
		}
		c, err = New(&host.Config{Identity: identity, Families: host.Families(), Sockets: s, Node: host.NewNodeDialer(s)})
		return err
	})
	if errors.Is(err, unix.EPERM) {
		testenv.CannotRun(t, "needs root: BPF")
	}
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, c)
	return c
}

// routesNow returns the existing routes.
func (c *Capture) routesNow(t *testing.T) map[Key]Value {
	t.Helper()
	routes, _, err := c.read()
	testenv.NoError(t, err)
	return routes
}

func frontend(port uint16) Key {
	return Key{kind: kindFrontend, protocol: unix.IPPROTO_TCP, frontend: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port)}
}

func route(addr string) Key { return atAddress(kindLocal, netip.MustParseAddr(addr)) }

func blackhole(p string) Key { return Key{kind: kindBlackhole, prefix: netip.MustParsePrefix(p)} }

func add(k Key, v verdict) op { return op{Kind: backends.Add, Key: k, Value: Value{verdict: v}} }

// impossible is an object that cannot be written.
func impossible() Key { return Key{kind: 99} }

// A commit that fails is undone, also for objects that it has changed twice.
func TestCommitsAreUndone(t *testing.T) {
	t.Parallel()
	l := captureIn(t)
	if err := l.Commit(t.Context(), []op{add(frontend(80), capture), add(blackhole("10.96.0.0/16"), 0), add(route("10.96.0.2"), 0)}); err != nil {
		t.Fatal(err)
	}
	if got := l.Operations(); got != 2 {
		t.Errorf("operations: got %d, want 2, the routes", got)
	}
	have, routes := maps.Clone(l.have), l.routesNow(t)
	err := l.Commit(t.Context(), []op{
		{Kind: backends.Replace, Key: frontend(80), Value: Value{verdict: drop}},
		{Kind: backends.Remove, Key: blackhole("10.96.0.0/16")},
		{Kind: backends.Remove, Key: route("10.96.0.2")},
		add(route("10.96.0.3"), 0), add(frontend(81), capture),
		{Kind: backends.Replace, Key: frontend(81), Value: Value{verdict: drop}},
		add(impossible(), 0),
	})
	if err == nil || errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("got error %v, want one that is not %v", err, proxy.ErrDataplaneLost)
	}
	comparable := cmp.Options{cmp.AllowUnexported(Key{}, Value{}), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})}
	if diff := cmp.Diff(have, l.have, comparable); diff != "" {
		t.Errorf("objects of the target (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(routes, l.routesNow(t), comparable); diff != "" {
		t.Errorf("routes in the kernel (-want +got):\n%s", diff)
	}
}

// An object that cannot be removed stays in the target's state. If undoing a commit fails, the
// dataplane is lost.
func TestErrors(t *testing.T) {
	t.Parallel()
	l := captureIn(t)
	if err := l.undo([]op{add(impossible(), 0)}); !errors.Is(err, proxy.ErrDataplaneLost) || len(l.have) != 0 {
		t.Errorf("failed undo: got error %v and objects %v, want %v and none", err, l.have, proxy.ErrDataplaneLost)
	}
	l.have[impossible()] = Value{verdict: 1}
	if err := l.do(&op{Kind: backends.Remove, Key: impossible()}); err == nil || l.have[impossible()].verdict != 1 {
		t.Errorf("failed removal: got error %v and objects %v, want an error and the object", err, l.have)
	}
}

// Removing a missing object is no error, and Cleanup removes all objects.
func TestRemoval(t *testing.T) {
	t.Parallel()
	l := captureIn(t)
	sctp := frontend(82)
	sctp.protocol = unix.IPPROTO_SCTP
	for _, k := range []Key{frontend(83), route("10.96.0.4"), blackhole("10.97.0.0/16"), sctp} {
		if err := l.Commit(t.Context(), []op{{Kind: backends.Remove, Key: k}}); err != nil {
			t.Errorf("removing missing object %v: got error %v, want none", k, err)
		}
	}
	if err := l.Commit(t.Context(), []op{add(frontend(80), capture), add(blackhole("10.96.0.0/16"), 0), add(route("10.96.0.2"), 0)}); err != nil {
		t.Fatal(err)
	}
	before := l.Operations()
	testenv.NoError(t, l.Cleanup(t.Context()))
	if got := l.Operations() - before; got != 2 || len(l.have) != 0 || len(l.routesNow(t)) != 0 {
		t.Errorf("Cleanup: got %d operations, objects %v and routes %v, want 2 and none", got, l.have, l.routesNow(t))
	}
}

// Before the client is known, packets to a frontend pass or are refused only if that holds for
// all clients. If no client is forwarded and the actions differ, packets are dropped.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	all := []proxy.Action{proxy.Pass, proxy.Forward, proxy.Reject, proxy.Drop}
	for _, inside := range all {
		for _, outside := range all {
			var want verdict
			switch {
			case inside == proxy.Forward || outside == proxy.Forward:
				want = capture
			case inside == proxy.Pass && outside == proxy.Pass:
				want = pass
			case inside == proxy.Reject && outside == proxy.Reject:
				want = refuse
			default:
				want = drop
			}
			if got := verdictOf(inside, outside); got != want {
				t.Errorf("%v inside and %v outside: got %d, want %d", inside, outside, got, want)
			}
		}
	}
}

// The kernel accepts both forms of the program, that for Linux before 5.17, too.
func TestProgramsWithoutInterfaces(t *testing.T) {
	t.Parallel()
	l := captureIn(t)
	for _, byInterface := range []bool{true, false} {
		program, err := l.lookup.load(byInterface)
		if err != nil {
			t.Errorf("by interface %v: got error %v, want none", byInterface, err)
			continue
		}
		testenv.CloseAtEnd(t, program)
	}
}
