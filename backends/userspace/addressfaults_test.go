package userspace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// wantFailed checks that an Apply has failed for some service ports alone.
func wantFailed(t *testing.T, err error, want ...string) {
	t.Helper()
	failed, _ := errors.AsType[proxy.PortErrors](err)
	var got []string
	for name := range failed {
		got = append(got, name.Name)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("failed ports: got %q and error %v, want %q", got, err, want)
	}
}

// manyPorts returns service ports with addresses of their own.
func manyPorts(n int, server netip.AddrPort) []*proxy.ServicePort {
	return objects.Many(n, func(i int) *proxy.ServicePort {
		return servicePort(fmt.Sprint("web", i), v1.ProtocolTCP, clusterIP(fmt.Sprintf("127.96.1.%d:18080", i)), server)
	})
}

// If an address cannot be added, its Services fail, and all others are served. No address is
// added twice or removed meanwhile, since that takes long.
func TestAddressThatCannotBeAdded(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	f := &follower{Backend: h.start(t, Options{})}
	bad := netip.MustParseAddr("127.96.1.20")
	h.fail = func(_ string, a netip.Addr) error {
		if a == bad {
			return errors.New("the parameter is incorrect")
		}
		return nil
	}
	ports := manyPorts(40, tcpServer(t, "web"))
	s := proxy.NewSnapshot(snapshots.Node("127.0.0.1"), ports...)
	wantFailed(t, f.try(t, s), "web20")
	wantTCP(t, "127.96.1.39:18080", "web")
	added := map[string]int{}
	for _, call := range h.calls {
		if added[call]++; added[call] > 1 && !strings.Contains(call, bad.String()) || strings.HasPrefix(call, "remove") {
			t.Errorf("got the call %q, want each address added once", call)
		}
	}
	h.fail = func(string, netip.Addr) error { return nil }
	f.apply(t, s)
	wantTCP(t, "127.96.1.20:18080", "web")
}

// If a program of the node listens at a frontend, its service port fails, and no other one does.
// The address stays as long as its Service: the program may be an earlier process that drains.
func TestFrontendInUse(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	f := &follower{Backend: h.start(t, Options{})}
	l, err := net.Listen("tcp4", "127.96.1.2:18080")
	testenv.NoError(t, err)
	defer l.Close() //nolint:errcheck // it is closed below
	s := proxy.NewSnapshot(snapshots.Node("127.0.0.1"), manyPorts(4, tcpServer(t, "web"))...)
	err = f.try(t, s)
	wantFailed(t, err, "web2")
	if want := "another program of the node listens there"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one with %q", err, want)
	}
	h.wantAddresses(t, "127.0.0.1", "127.96.1.0", "127.96.1.1", "127.96.1.2", "127.96.1.3")
	if f.Abilities().Drifted(t.Context()) {
		t.Error("Drifted: got true, want false")
	}
	f.apply(t, proxy.NewSnapshot(snapshots.Node("127.0.0.1")))
	h.wantAddresses(t, "127.0.0.1")
	wantFailed(t, f.try(t, s), "web2")
	testenv.NoError(t, l.Close())
	f.apply(t, s)
	wantTCP(t, "127.96.1.2:18080", "web")
}

// A manager may report success although the host does not have the address. Its Services fail; they
// do not count as served.
func TestAddressThatIsNotThere(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	h.ignored = netip.MustParseAddr("192.0.2.77")
	o := Options{}
	o.Addresses.usable = 20 * time.Millisecond
	f := &follower{Backend: h.start(t, o)}
	server := tcpServer(t, "web")
	ports := append(manyPorts(2, server),
		servicePort("rejecting", v1.ProtocolTCP, clusterIP("192.0.2.77:18443")),
		servicePort("serving", v1.ProtocolTCP, clusterIP("192.0.2.77:18080"), server))
	wantFailed(t, f.try(t, proxy.NewSnapshot(snapshots.Node("127.0.0.1"), ports...)), "serving")
	wantTCP(t, "127.96.1.1:18080", "web")
	if !f.Abilities().Drifted(t.Context()) {
		t.Error("Drifted: got false, want true")
	}
}

// If no address can be changed at present, no service port is to blame, and nothing changes.
func TestInterfaceIsMissing(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	f := &follower{Backend: h.start(t, Options{})}
	h.fail = func(string, netip.Addr) error { return fmt.Errorf("no interface: %w", backends.ErrUnavailable) }
	s := proxy.NewSnapshot(snapshots.Node("127.0.0.1"), manyPorts(9, tcpServer(t, "web"))...)
	if err := f.try(t, s); !errors.Is(err, backends.ErrUnavailable) {
		t.Errorf("got error %v, want %v", err, backends.ErrUnavailable)
	}
	if got := len(h.calls); got != 1 {
		t.Errorf("got %d calls, want one", got)
	}
	h.fail = func(string, netip.Addr) error { return nil }
	f.apply(t, s)
	wantTCP(t, "127.96.1.8:18080", "web")
}

// An address that cannot be removed is a problem of the node, and removed later. Services are served
// meanwhile, and their changes do not try it again.
func TestAddressThatCannotBeRemoved(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	f := &follower{Backend: h.start(t, Options{})}
	ports := manyPorts(2, tcpServer(t, "web"))
	node := snapshots.Node("127.0.0.1")
	f.apply(t, proxy.NewSnapshot(node, ports...))
	h.fail = func(what string, _ netip.Addr) error {
		if what == "remove" {
			return errors.New("not now")
		}
		return nil
	}
	less := proxy.NewSnapshot(node, ports[0])
	f.apply(t, less)
	if p := f.Abilities().CheckNode(less); len(p) != 1 || p[0].Field != "address 127.96.1.1" {
		t.Errorf("CheckNode: got %v, want the address", p)
	}
	if !f.Abilities().Drifted(t.Context()) {
		t.Error("Drifted: got false, want true")
	}
	before := len(h.calls)
	f.apply(t, proxy.NewSnapshot(node, ports[0], manyPorts(3, tcpServer(t, "web"))[2]))
	if got := h.calls[before:]; len(got) != 1 {
		t.Errorf("another Service: got calls %q, want that for its address", got)
	}
	wantTCP(t, "127.96.1.2:18080", "web")
	h.wantAddresses(t, "127.0.0.1", "127.96.1.0", "127.96.1.1", "127.96.1.2")
	h.fail = func(string, netip.Addr) error { return nil }
	f.held = proxy.Snapshot{} // what a Runner applies after drift
	f.apply(t, less)
	if p := f.Abilities().CheckNode(less); len(p) != 0 {
		t.Errorf("CheckNode: got %v, want nothing", p)
	}
	h.wantAddresses(t, "127.0.0.1", "127.96.1.0")
	if f.Abilities().Drifted(t.Context()) {
		t.Error("Drifted: got true, want false")
	}
	h.fail = func(string, netip.Addr) error { return errors.New("not now") }
	if err := f.Cleanup(t.Context()); err == nil || !strings.Contains(err.Error(), "127.96.1.0") {
		t.Errorf("Cleanup: got error %v, want one with the address", err)
	}
}

// Another program removes an address: the next full Apply adds it again, and listens there.
func TestAddressesAreRepaired(t *testing.T) {
	h := newFakeHost("127.0.0.1", "127.97.0.1")
	f := &follower{Backend: h.start(t, Options{})}
	own, others := netip.MustParseAddr("127.96.1.1"), netip.MustParseAddr("127.97.0.1")
	server := tcpServer(t, "web")
	ports := append(manyPorts(2, server), servicePort("external", v1.ProtocolTCP, []frontend{{proxy.ExternalIP, "127.97.0.1:18080"}}, server))
	s := proxy.NewSnapshot(snapshots.Node("127.0.0.1"), ports...)
	f.apply(t, s)
	for _, gone := range []netip.Addr{own, others} {
		h.meddle(func(addrs map[netip.Addr]bool) { delete(addrs, gone) })
		if !f.Abilities().Drifted(t.Context()) {
			t.Errorf("without %v: Drifted: got false, want true", gone)
		}
		f.held = proxy.Snapshot{}
		f.apply(t, s)
		wantTCP(t, netip.AddrPortFrom(gone, 18080).String(), "web")
	}
	h.wantAddresses(t, "127.0.0.1", "127.96.1.0", "127.96.1.1", "127.97.0.1")
	f.apply(t, proxy.NewSnapshot(snapshots.Node("127.0.0.1"))) // now all three are its own
	h.wantAddresses(t, "127.0.0.1")
	h.meddle(func(addrs map[netip.Addr]bool) { delete(addrs, own) })
	if f.Abilities().Drifted(t.Context()) {
		t.Error("without Services: Drifted: got true, want false")
	}
}

// Of a damaged file nothing is believed: addresses may be another program's. A file that was cut off
// is one of an earlier time.
func TestDamagedFile(t *testing.T) {
	for name, c := range map[string]struct {
		tear func([]byte) []byte
		own  bool // it has 127.96.1.0
	}{
		"empty":      {func([]byte) []byte { return nil }, false},
		"shortened":  {func(b []byte) []byte { return b[:len(b)-3] }, true},
		"first line": {func(b []byte) []byte { return b[:len(b)/2] }, true},
		"changed":    {func(b []byte) []byte { return []byte(strings.Replace(string(b), "127.96.1.0", "127.96.1.7", 1)) }, false},
		"zeros":      {func(b []byte) []byte { return make([]byte, len(b)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHost("127.0.0.1", "127.96.1.7")
			state := filepath.Join(t.TempDir(), "addresses")
			ports := manyPorts(2, tcpServer(t, "web"))
			node := snapshots.Node("127.0.0.1")
			b := h.on(t, state, Options{})
			testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(node, ports...)))
			testenv.NoError(t, b.Close())
			text, err := os.ReadFile(state)
			testenv.NoError(t, err)
			testenv.NoError(t, os.WriteFile(state, c.tear(text), 0o600))
			f := &follower{Backend: h.on(t, state, Options{})}
			f.apply(t, proxy.NewSnapshot(node, ports[0]))
			wantTCP(t, "127.96.1.0:18080", "web")
			f.apply(t, proxy.NewSnapshot(node))
			want := []string{"127.0.0.1", "127.96.1.1", "127.96.1.7"}
			if !c.own {
				want = append(want, "127.96.1.0")
			}
			h.wantAddresses(t, want...)
		})
	}
}

// If the file cannot be written, no address is added: it could not be removed after a crash.
func TestFileThatCannotBeWritten(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	state := filepath.Join(t.TempDir(), "addresses")
	if err := os.MkdirAll(state+".new", 0o755); err != nil { // a folder where the file should be
		t.Fatal(err)
	}
	f := &follower{Backend: h.on(t, state, Options{})}
	if err := f.try(t, proxy.NewSnapshot(snapshots.Node("127.0.0.1"), manyPorts(1, tcpServer(t, "web"))...)); err == nil {
		t.Error("got no error, want one")
	}
	h.wantAddresses(t, "127.0.0.1")
	h.wantCalls(t)
}

// Where no endpoint can serve, the system refuses; with a hook, the client waits for the first
// endpoint.
func TestAddressesWithoutEndpoints(t *testing.T) {
	server := tcpServer(t, "web")
	node := snapshots.Node("127.0.0.1")
	none := proxy.NewSnapshot(node, servicePort("web", v1.ProtocolTCP, clusterIP("127.96.1.0:18080")))
	some := proxy.NewSnapshot(node, servicePort("web", v1.ProtocolTCP, clusterIP("127.96.1.0:18080"), server))
	h := newFakeHost("127.0.0.1")
	f := &follower{Backend: h.start(t, Options{})}
	f.apply(t, none)
	h.wantAddresses(t, "127.0.0.1", "127.96.1.0")
	wantNone(t, "127.96.1.0:18080")
	f.apply(t, some)
	wantTCP(t, "127.96.1.0:18080", "web")
	f.apply(t, none)
	wantNone(t, "127.96.1.0:18080")
	h.wantCalls(t, "add 127.96.1.0")

	asked := make(chan string, 1)
	waking := &follower{Backend: newFakeHost("127.0.0.1").start(t, Options{Hooks: Hooks{
		FirstConnection: func(_ Flow, name proxy.ServicePortName) { asked <- name.Name },
	}})}
	f.apply(t, proxy.NewSnapshot(node))
	waking.apply(t, none)
	done := make(chan struct{})
	go func() {
		defer close(done)
		wantTCP(t, "127.96.1.0:18080", "web")
	}()
	testenv.Same(t, "web", <-asked, "first connection")
	waking.apply(t, some)
	<-done
}

// The context ends an Apply that waits for an address, and the next one completes the work.
func TestAddressesAreCancelled(t *testing.T) {
	h := newFakeHost("127.0.0.1", "192.0.2.77") // no socket can listen at the second one
	f := &follower{Backend: h.start(t, Options{})}
	server := tcpServer(t, "web")
	unusable := servicePort("never", v1.ProtocolTCP, []frontend{{proxy.ExternalIP, "192.0.2.77:18080"}}, server)
	s := proxy.NewSnapshot(snapshots.Node("127.0.0.1"), append(manyPorts(2, server), unusable)...)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := f.Apply(ctx, proxy.Snapshot{}, s); err == nil || time.Since(start) > usable/2 {
		t.Errorf("got error %v after %v, want one at once", err, time.Since(start))
	}
	f.apply(t, proxy.NewSnapshot(snapshots.Node("127.0.0.1"), manyPorts(2, server)...))
	wantTCP(t, "127.96.1.1:18080", "web")
	h.wantAddresses(t, "127.0.0.1", "127.96.1.0", "127.96.1.1", "192.0.2.77")
}

// Whatever fails in whatever order, with restarts in between, the host ends up with the addresses
// of Services and those that it had before.
func TestAddressesConverge(t *testing.T) {
	r := testenv.Random(t)
	h := newFakeHost("127.0.0.1", "127.96.1.3", "127.96.9.9")
	state := filepath.Join(t.TempDir(), "addresses")
	faulty := true
	h.fail = func(string, netip.Addr) error {
		if faulty && r.IntN(10) == 0 {
			return errors.New("some fault")
		}
		return nil
	}
	server := tcpServer(t, "web")
	f := &follower{Backend: h.on(t, state, Options{})}
	for range 300 {
		if r.IntN(20) == 0 { // as after a crash: nothing is removed
			testenv.NoError(t, f.Close())
			f = &follower{Backend: h.on(t, state, Options{})}
		}
		s, want := someAddresses(r, server)
		err := f.try(t, s)
		faulty = false
		f.repair(t, s, err)
		faulty = true
		h.wantAddresses(t, slices.Concat(want, []string{"127.0.0.1", "127.96.9.9"})...)
		for _, a := range want {
			if r.IntN(10) == 0 && a != "127.96.1.3" {
				wantTCP(t, a+":18080", "web")
			}
		}
		if t.Failed() {
			return
		}
	}
	if err := f.Cleanup(t.Context()); err != nil {
		faulty = false
		testenv.NoError(t, f.Cleanup(t.Context()))
	}
	h.wantAddresses(t, "127.0.0.1", "127.96.1.3", "127.96.9.9")
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("the file after Cleanup: got error %v, want none of it", err)
	}
}

// someAddresses returns a snapshot of random Services, and the addresses that the host must have
// because of them, and 127.96.1.3, which it has anyway.
func someAddresses(r *rand.Rand, server netip.AddrPort) (proxy.Snapshot, []string) {
	var ports []*proxy.ServicePort
	needed := map[string]bool{"127.96.1.3": true}
	for n := range 8 {
		if r.IntN(2) == 0 {
			continue
		}
		addr := fmt.Sprintf("127.96.1.%d", n)
		needed[addr] = true
		ports = append(ports, servicePort(fmt.Sprint("a", n), v1.ProtocolTCP, clusterIP(addr+":18080"), server))
		if r.IntN(2) == 0 {
			ports = append(ports, servicePort(fmt.Sprint("b", n), v1.ProtocolTCP, clusterIP(addr+":18443"), server))
		}
	}
	var want []string
	for a := range needed {
		want = append(want, a)
	}
	return proxy.NewSnapshot(snapshots.Node("127.0.0.1"), ports...), want
}
