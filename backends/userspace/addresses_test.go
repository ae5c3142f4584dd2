package userspace

import (
	"fmt"
	"io"
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
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The interface is that of the option, of the environment, or that of HNS; each identity has a file
// of its own.
func TestAddressOptions(t *testing.T) {
	env := map[string]string{"ProgramData": "data"}
	getenv := func(name string) string { return env[name] }
	complete := func(o AddressOptions) AddressOptions {
		o.complete(backends.Identity{Name: "edge"}, getenv)
		return o
	}
	for _, c := range []struct{ variable, option, want string }{
		{"", "", "vEthernet (HNS Internal NIC)"},
		{"vEthernet (nat)", "", "vEthernet (nat)"},
		{"vEthernet (nat)", "Ethernet 2", "Ethernet 2"},
	} {
		env["INTERFACE_TO_ADD_SERVICE_IP"] = c.variable
		testenv.Same(t, c.want, complete(AddressOptions{Interface: c.option}).Interface, "variable %q, option %q", c.variable, c.option)
	}
	testenv.Same(t, filepath.Join("data", "vipkit", "edge.addresses"), complete(AddressOptions{}).State, "file")
	testenv.Same(t, "here", complete(AddressOptions{State: "here"}).State, "file of the option")
}

// A Service is served at an address that was added for it, until it is removed.
func TestAddressesServe(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	f := &follower{Backend: h.start(t, Options{})}
	node := snapshots.Node("127.0.0.1")
	web := servicePort("web", v1.ProtocolTCP, clusterIP("127.96.0.1:18080"), tcpServer(t, "web"))
	dns := servicePort("dns", v1.ProtocolUDP, clusterIP("127.96.0.2:15353"), udpServer(t, "dns"))
	f.apply(t, proxy.NewSnapshot(node, web, dns))
	h.wantAddresses(t, "127.0.0.1", "127.96.0.1", "127.96.0.2")
	wantTCP(t, "127.96.0.1:18080", "web")
	wantUDP(t, "127.96.0.2:15353", "dns")
	wantNone(t, "127.96.0.1:18081")
	f.apply(t, proxy.NewSnapshot(node, dns))
	h.wantAddresses(t, "127.0.0.1", "127.96.0.2")
	wantNone(t, "127.96.0.1:18080")
	wantUDP(t, "127.96.0.2:15353", "dns")
}

// The same snapshot again changes nothing.
func TestAddressesAreIdempotent(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	b := h.start(t, Options{})
	s := proxy.NewSnapshot(snapshots.Node("127.0.0.1"), servicePort("web", v1.ProtocolTCP, clusterIP("127.96.0.1:18080"), tcpServer(t, "web")))
	var before proxy.Snapshot
	for range 3 {
		testenv.NoError(t, b.Apply(t.Context(), before, s))
		before = s
	}
	testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
	if got := b.Abilities().Operations(); got != 2 {
		t.Errorf("got %d operations, want 2: an address and a listener", got)
	}
	h.wantCalls(t, "add 127.96.0.1")
	if b.Abilities().Drifted(t.Context()) {
		t.Error("Drifted: got true, want false")
	}
}

// An address stays while one port of one Service needs it.
func TestAddressesAreCounted(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	f := &follower{Backend: h.start(t, Options{})}
	server := tcpServer(t, "x")
	port := func(name string, at ...frontend) *proxy.ServicePort {
		return servicePort(name, v1.ProtocolTCP, at, server)
	}
	one := port("one", frontend{proxy.ClusterIP, "127.96.0.1:18080"}, frontend{proxy.ExternalIP, "127.97.0.1:18080"})
	two := port("two", frontend{proxy.ClusterIP, "127.96.0.1:18443"})
	three := port("three", frontend{proxy.LoadBalancer, "127.97.0.1:18443"})
	node := snapshots.Node("127.0.0.1")
	for _, step := range []struct {
		ports []*proxy.ServicePort
		want  []string
	}{
		{[]*proxy.ServicePort{one, two, three}, []string{"127.96.0.1", "127.97.0.1"}},
		{[]*proxy.ServicePort{two, three}, []string{"127.96.0.1", "127.97.0.1"}},
		{[]*proxy.ServicePort{three}, []string{"127.97.0.1"}},
		{[]*proxy.ServicePort{one}, []string{"127.96.0.1", "127.97.0.1"}},
		{nil, nil},
	} {
		f.apply(t, proxy.NewSnapshot(node, step.ports...))
		h.wantAddresses(t, append(step.want, "127.0.0.1")...)
		for _, p := range []*proxy.ServicePort{one, two, three} {
			for i := range p.Frontends {
				at := p.Frontends[i].Addr.String()
				if slices.Contains(step.ports, p) {
					wantTCP(t, at, "x")
				} else {
					wantNone(t, at)
				}
			}
		}
	}
	h.wantCalls(t, "add 127.96.0.1", "add 127.96.0.1", "add 127.97.0.1", "remove 127.96.0.1", "remove 127.96.0.1", "remove 127.97.0.1")
}

// An address that the host had before is used, and stays.
func TestAddressesOfOthersStay(t *testing.T) {
	h := newFakeHost("127.0.0.1", "127.97.0.1")
	b := h.start(t, Options{})
	f := &follower{Backend: b}
	node := snapshots.Node("127.0.0.1")
	f.apply(t, proxy.NewSnapshot(node, servicePort("web", v1.ProtocolTCP, []frontend{{proxy.ExternalIP, "127.97.0.1:18080"}}, tcpServer(t, "web"))))
	wantTCP(t, "127.97.0.1:18080", "web")
	f.apply(t, proxy.NewSnapshot(node))
	h.wantAddresses(t, "127.0.0.1", "127.97.0.1")
	testenv.NoError(t, b.Cleanup(t.Context()))
	h.wantAddresses(t, "127.0.0.1", "127.97.0.1")
	h.wantCalls(t)
}

// A process that was killed leaves addresses behind. The next one keeps those that Services have,
// and removes the others.
func TestAddressesAreAdopted(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	state := filepath.Join(t.TempDir(), "new", "addresses")
	server := tcpServer(t, "web")
	at := func(n int) *proxy.ServicePort {
		return servicePort(fmt.Sprint("web", n), v1.ProtocolTCP, clusterIP(fmt.Sprintf("127.96.0.%d:18080", n)), server)
	}
	node := snapshots.Node("127.0.0.1")
	killed := h.on(t, state, Options{})
	testenv.NoError(t, killed.Apply(t.Context(), proxy.Snapshot{}, proxy.NewSnapshot(node, at(1), at(2))))
	testenv.NoError(t, killed.Close())
	h.wantCalls(t, "add 127.96.0.1", "add 127.96.0.2")
	h.meddle(func(addrs map[netip.Addr]bool) { addrs[netip.MustParseAddr("127.96.0.9")] = true })
	next := &follower{Backend: h.on(t, state, Options{})}
	next.apply(t, proxy.NewSnapshot(node, at(2), at(3)))
	h.wantCalls(t, "add 127.96.0.3", "remove 127.96.0.1")
	wantTCP(t, "127.96.0.2:18080", "web")
	wantTCP(t, "127.96.0.3:18080", "web")
	testenv.NoError(t, next.Close())
	last := h.on(t, state, Options{}) // Cleanup needs no earlier Apply
	testenv.NoError(t, last.Cleanup(t.Context()))
	h.wantAddresses(t, "127.0.0.1", "127.96.0.9")
}

// Drain closes the listeners, and waits for established connections. A successor that uses the
// same file serves meanwhile, at the same addresses.
func TestAddressesDrain(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	state := filepath.Join(t.TempDir(), "addresses")
	release := make(chan struct{})
	s := proxy.NewSnapshot(snapshots.Node("127.0.0.1"), servicePort("web", v1.ProtocolTCP, clusterIP("127.96.0.1:18080"), slowServer(t, release)))
	first := h.on(t, state, Options{})
	testenv.NoError(t, first.Apply(t.Context(), proxy.Snapshot{}, s))
	established, err := net.Dial("tcp4", "127.96.0.1:18080")
	testenv.NoError(t, err)
	defer established.Close() //nolint:errcheck // everything was read
	if _, err := io.ReadFull(established, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- first.Drain(t.Context()) }()
	next := h.on(t, state, Options{})
	for next.Apply(t.Context(), proxy.Snapshot{}, s) != nil { // until the first one has closed its listener
		if t.Context().Err() != nil {
			t.Fatal("the successor cannot listen")
		}
	}
	other, err := net.Dial("tcp4", "127.96.0.1:18080")
	testenv.NoError(t, err)
	defer other.Close() //nolint:errcheck // everything was read
	select {
	case err := <-drained:
		t.Fatalf("Drain with a connection: got error %v at once, want it to wait", err)
	default:
	}
	close(release)
	for _, c := range []net.Conn{established, other} {
		if text, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(text), "end") {
			t.Errorf("got %q and error %v, want the end", text, err)
		}
		_ = c.Close() // The client has sent everything, too.
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	h.wantCalls(t, "add 127.96.0.1")
}

// slowServer greets each client, and ends the connection once it is released.
func slowServer(t *testing.T, release <-chan struct{}) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.WriteString(c, "begin")
				<-release
				_, _ = io.WriteString(c, "end")
				_ = c.Close()
			}()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

// A client keeps its endpoint at all addresses of a service port, and others do not.
func TestAddressesAffinity(t *testing.T) {
	h := newFakeHost("127.0.0.1")
	f := &follower{Backend: h.start(t, Options{})}
	p := servicePort("web", v1.ProtocolTCP, []frontend{{proxy.ClusterIP, "127.96.0.1:18080"}, {proxy.ExternalIP, "127.97.0.1:18080"}},
		tcpServer(t, "one"), tcpServer(t, "two"), tcpServer(t, "three"))
	sticky := *p
	sticky.Affinity.Timeout = time.Hour
	f.apply(t, proxy.NewSnapshot(snapshots.Node("127.0.0.1"), &sticky))
	kept, err := ask("127.96.0.1:18080")
	testenv.NoError(t, err)
	for range 4 {
		// The source is the same for both: the address of the node that the system chooses
		// for the loopback network.
		wantTCP(t, "127.96.0.1:18080", kept)
		wantTCP(t, "127.97.0.1:18080", kept)
	}
	f.apply(t, proxy.NewSnapshot(snapshots.Node("127.0.0.1"), p))
	got := map[string]bool{}
	for range 3 {
		text, err := ask("127.96.0.1:18080")
		testenv.NoError(t, err)
		got[text] = true
	}
	if len(got) != 3 {
		t.Errorf("without affinity: got answers of %v, want all three", got)
	}
}

// A change appends to the file, and lists addresses only if it adds one or opens a listener.
func TestCostOfAddresses(t *testing.T) {
	t.Parallel()
	h := newFakeHost("127.0.0.1")
	state := filepath.Join(t.TempDir(), "addresses")
	f := &follower{Backend: h.on(t, state, Options{})}
	server := tcpServer(t, "web")
	ports := manyPorts(100, server)
	node := snapshots.Node("127.0.0.1")
	f.apply(t, proxy.NewSnapshot(node, ports[:99]...))
	read := func() string {
		text, err := os.ReadFile(state)
		testenv.NoError(t, err)
		return string(text)
	}
	before := read()
	f.apply(t, proxy.NewSnapshot(node, ports...))
	if rest, appended := strings.CutPrefix(read(), before); !appended || strings.Count(rest, "\n") != 1 {
		t.Errorf("one more address: got the file\n%s\nwant one more line", read())
	}
	lists := h.lists
	f.apply(t, proxy.NewSnapshot(node, ports[:99]...))
	if h.lists != lists {
		t.Errorf("one Service less: got %d lists of addresses, want none", h.lists-lists)
	}
}
