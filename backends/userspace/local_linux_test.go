package userspace

import (
	"errors"
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// localIn gives the edge of local routes in a namespace of its own.
func localIn(t *testing.T) *local {
	t.Helper()
	ns := netnstest.NewNS(t)
	var b *Backend
	err := ns.Do(func() (err error) {
		b, err = New(Options{Capture: LocalRoutes})
		return err
	})
	if errors.Is(err, proxy.ErrUnsupported) && errors.Is(err, unix.EPERM) {
		testenv.CannotRun(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	testenv.CloseAtEnd(t, b)
	l, ok := b.kernel.(*local)
	if !ok {
		t.Fatalf("got %T, want local routes", b.kernel)
	}
	return l
}

// see gives the routes that there are.
func (l *local) routesNow(t *testing.T) map[key]value {
	t.Helper()
	routes, _, err := l.see()
	if err != nil {
		t.Fatal(err)
	}
	return routes
}

// A commit that fails leaves everything as it was, also what it has changed twice, and
// removes what is not there without ado.
func TestLocalCommitsAreUndone(t *testing.T) {
	l := localIn(t)
	frontend := func(port uint16) key {
		return key{kind: kindFrontend, fam: nfnetlink.IPv4, proto: protoTCP, addr: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port)}
	}
	blackhole := key{kind: kindBlackhole, fam: nfnetlink.IPv4, source: netip.MustParsePrefix("10.96.0.0/16")}
	route := func(addr string) key {
		return key{kind: kindLocal, fam: nfnetlink.IPv4, addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 0)}
	}
	impossible := key{kind: 99}
	add := func(k key, hash uint64) op { return op{Kind: backends.Add, Key: k, Value: value{hash: hash}} }
	if err := l.Commit(t.Context(), []op{add(frontend(80), localCapture), add(blackhole, 0), add(route("10.96.0.2"), 0)}); err != nil {
		t.Fatal(err)
	}
	if got := l.Operations(); got != 2 {
		t.Errorf("%d operations are counted, want 2: the routes", got)
	}
	have, routes := maps.Clone(l.have), l.routesNow(t)
	err := l.Commit(t.Context(), []op{
		{Kind: backends.Replace, Key: frontend(80), Value: value{hash: localDrop}},
		{Kind: backends.Remove, Key: blackhole},
		{Kind: backends.Remove, Key: route("10.96.0.2")},
		add(route("10.96.0.3"), 0), add(frontend(81), localCapture),
		{Kind: backends.Replace, Key: frontend(81), Value: value{hash: localDrop}},
		add(impossible, 0),
	})
	if err == nil || errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("got error %v, want one after which it is known what there is", err)
	}
	comparable := cmp.Options{cmp.AllowUnexported(key{}, value{}), cmpopts.EquateComparable(netip.AddrPort{}, netip.Prefix{})}
	if diff := cmp.Diff(have, l.have, comparable); diff != "" {
		t.Errorf("what is known (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(routes, l.routesNow(t), comparable); diff != "" {
		t.Errorf("what there is (-want +got):\n%s", diff)
	}
	if err := l.undo([]op{add(impossible, 0)}); !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("what cannot be undone: got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
	l.have[impossible] = value{hash: 1}
	if err := l.do(&op{Kind: backends.Remove, Key: impossible}); err == nil || l.have[impossible].hash != 1 {
		t.Errorf("what cannot be removed: got error %v, and it is forgotten", err)
	}
	delete(l.have, impossible)
	sctp := frontend(82)
	sctp.proto = protoSCTP
	for _, k := range []key{frontend(83), route("10.96.0.4"), {kind: kindBlackhole, fam: nfnetlink.IPv4, source: netip.MustParsePrefix("10.97.0.0/16")}, sctp} {
		if err := l.Commit(t.Context(), []op{{Kind: backends.Remove, Key: k}}); err != nil {
			t.Errorf("removing what is not there: got error %v", err)
		}
	}
	before := l.Operations()
	if err := l.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := l.Operations() - before; got != 2 || len(l.have) != 0 || len(l.routesNow(t)) != 0 {
		t.Errorf("Cleanup took %d operations and leaves %v, of which are there %v; want 2 and nothing", got, l.have, l.routesNow(t))
	}
}

// What becomes of a frontend before anybody knows who asks: it is nobody's business, or
// refused, only if that is so for all. If nobody is served, nobody hears anything.
func TestVerdictsOfLocalRoutes(t *testing.T) {
	for _, inside := range actions() {
		for _, outside := range actions() {
			var want uint64
			switch {
			case inside == "capture" || outside == "capture":
				want = localCapture
			case inside == "pass" && outside == "pass":
				want = 0
			case inside == "reject" && outside == "reject":
				want = localRefuse
			default:
				want = localDrop
			}
			if got := localVerdict(inside, outside); got != want {
				t.Errorf("%s inside and %s outside: got %d, want %d", inside, outside, got, want)
			}
		}
	}
}

// The kernel takes the program in the form for Linux before 5.17, too.
func TestProgramsWithoutInterfaces(t *testing.T) {
	l := localIn(t)
	for _, byInterface := range []bool{true, false} {
		program, err := load(l.lookup.code(byInterface))
		if err != nil {
			t.Errorf("by interface: %v: %v", byInterface, err)
			continue
		}
		_ = unix.Close(program)
	}
}
