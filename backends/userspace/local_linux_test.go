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

func localFrontend(port uint16) key {
	return key{kind: kindFrontend, fam: nfnetlink.IPv4, proto: protoTCP, addr: netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port)}
}

func localRoute(addr string) key {
	return key{kind: kindLocal, fam: nfnetlink.IPv4, addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 0)}
}

func localRange(p string) key {
	return key{kind: kindBlackhole, fam: nfnetlink.IPv4, source: netip.MustParsePrefix(p)}
}

func add(k key, hash uint64) op { return op{Kind: backends.Add, Key: k, Value: value{hash: hash}} }

// impossible is an object that cannot be written.
func impossible() key { return key{kind: 99} }

// A commit that fails leaves everything as it was, also what it has changed twice.
func TestLocalCommitsAreUndone(t *testing.T) {
	l := localIn(t)
	if err := l.Commit(t.Context(), []op{add(localFrontend(80), localCapture), add(localRange("10.96.0.0/16"), 0), add(localRoute("10.96.0.2"), 0)}); err != nil {
		t.Fatal(err)
	}
	if got := l.Operations(); got != 2 {
		t.Errorf("%d operations are counted, want 2: the routes", got)
	}
	have, routes := maps.Clone(l.have), l.routesNow(t)
	err := l.Commit(t.Context(), []op{
		{Kind: backends.Replace, Key: localFrontend(80), Value: value{hash: localDrop}},
		{Kind: backends.Remove, Key: localRange("10.96.0.0/16")},
		{Kind: backends.Remove, Key: localRoute("10.96.0.2")},
		add(localRoute("10.96.0.3"), 0), add(localFrontend(81), localCapture),
		{Kind: backends.Replace, Key: localFrontend(81), Value: value{hash: localDrop}},
		add(impossible(), 0),
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
}

// What can be neither written nor removed is known as it was, and nobody knows what
// there is if it cannot be undone.
func TestLocalErrors(t *testing.T) {
	l := localIn(t)
	if err := l.undo([]op{add(impossible(), 0)}); !errors.Is(err, proxy.ErrDataplaneLost) || len(l.have) != 0 {
		t.Errorf("what cannot be undone: got error %v and %v, want %v and nothing", err, l.have, proxy.ErrDataplaneLost)
	}
	l.have[impossible()] = value{hash: 1}
	if err := l.do(&op{Kind: backends.Remove, Key: impossible()}); err == nil || l.have[impossible()].hash != 1 {
		t.Errorf("what cannot be removed: got error %v, and it is forgotten", err)
	}
}

// What is not there is removed without ado, and Cleanup removes what there is.
func TestLocalRemoval(t *testing.T) {
	l := localIn(t)
	sctp := localFrontend(82)
	sctp.proto = protoSCTP
	for _, k := range []key{localFrontend(83), localRoute("10.96.0.4"), localRange("10.97.0.0/16"), sctp} {
		if err := l.Commit(t.Context(), []op{{Kind: backends.Remove, Key: k}}); err != nil {
			t.Errorf("removing what is not there: got error %v", err)
		}
	}
	if err := l.Commit(t.Context(), []op{add(localFrontend(80), localCapture), add(localRange("10.96.0.0/16"), 0), add(localRoute("10.96.0.2"), 0)}); err != nil {
		t.Fatal(err)
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
