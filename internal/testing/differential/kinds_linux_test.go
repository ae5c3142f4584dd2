package differential

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, cost)) }

// kind opens backends of a kind and capture with an identity.
type kind struct {
	name string
	open func(backends.Identity) (proxy.Backend, error)
}

func kinds() []kind {
	byIPTables := func(f iptables.Flavour) func(backends.Identity) (proxy.Backend, error) {
		return func(i backends.Identity) (proxy.Backend, error) {
			return iptables.New(iptables.Options{Identity: i, Flavour: f})
		}
	}
	byUserspace := func(c userspace.Capture) func(backends.Identity) (proxy.Backend, error) {
		return func(i backends.Identity) (proxy.Backend, error) {
			return userspace.New(userspace.Options{Identity: i, Capture: c})
		}
	}
	return []kind{
		{"nftables", func(i backends.Identity) (proxy.Backend, error) { return nftables.New(nftables.Options{Identity: i}) }},
		{"iptables-nft", byIPTables(iptables.NFT)},
		{"iptables-legacy", byIPTables(iptables.Legacy)},
		{"tproxy", byUserspace(userspace.TPROXY)},
		{"redirect", byUserspace(userspace.Redirect)},
	}
}

// host is a network namespace whose kernel state can be compared.
type host struct{ *netns.NS }

// newHost returns a namespace in which each kind has been and was cleaned up, since iptables keeps
// the tables that it has made.
func newHost(t *testing.T) host {
	h := host{netnstest.NewNS(t)}
	h.use(t)
	return h
}

// use starts each kind and cleans it up.
func (h host) use(t *testing.T) {
	t.Helper()
	for _, k := range kinds() {
		b := h.start(t, k, backends.Identity{})
		cleanUp(t, b)
	}
}

// start opens a backend and applies a Service of both families.
func (h host) start(t *testing.T, k kind, identity backends.Identity) proxy.Backend {
	t.Helper()
	b := h.open(t, k, identity)
	if err := b.Apply(t.Context(), proxy.Snapshot{}, oneService()); err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	return b
}

func (h host) open(t *testing.T, k kind, identity backends.Identity) (b proxy.Backend) {
	t.Helper()
	err := h.Do(func() (err error) {
		b, err = k.open(identity)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	return b
}

func closeOf(t *testing.T, b io.Closer) {
	t.Helper()
	if err := testenv.Close(b); err != nil {
		t.Error(err)
	}
}

func cleanUp(t *testing.T, b proxy.Backend) {
	t.Helper()
	if err := b.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	closeOf(t, b)
}

// state returns what the kernel has, as sorted words: it lists elements in no particular order.
func (h host) state(t *testing.T) string {
	t.Helper()
	var all []string
	for _, command := range [][]string{
		{"nft", "-s", "list", "ruleset"}, {"iptables-legacy-save"}, {"ip6tables-legacy-save"},
		{"ip", "rule"}, {"ip", "-6", "rule"}, {"ip", "route", "show", "table", "all"}, {"ip", "-6", "route", "show", "table", "all"},
	} {
		out, err := netnstest.Run(t, h.NS, "", command[0], command[1:]...)
		testenv.NoError(t, err)
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ":") {
				all = append(all, strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(", \t\n", r) })...)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

func wantState(t *testing.T, when, want, got string) {
	t.Helper()
	testenv.Same(t, want, got, "%s: words of the kernel's state", when)
}

// oneService is a Service with a node port and an endpoint on another node, in both families.
func oneService() proxy.Snapshot {
	inside := proxy.TrafficRoute{Action: proxy.Forward, Masquerade: proxy.MasqueradeNever}
	outside := proxy.TrafficRoute{Action: proxy.Forward, Masquerade: proxy.MasqueradeAlways}
	s := proxy.NewSnapshot(&proxy.Node{Name: "node-1", NodePorts: proxy.NodePortAddresses{All: true}},
		snapshots.Port("default/web:http", "10.96.0.10:80 :30080", "10.244.2.2:8080"), snapshots.Port("default/web:http", "[fd00:96::10]:80 [::]:30080", "[fd00:10::2]:8080"))
	return snapshots.EachWith(s, snapshots.Routes(inside, outside), func(p *proxy.ServicePort) { p.Frontends[1].FromInside = outside })
}

// A backend of one kind ends without Cleanup, and one of another kind starts, both with defaults. The
// kernel then has what the second one alone makes, and after its Cleanup nothing. If the first one
// ends later, the second one notices it.
func TestKindAfterKind(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	empty := h.state(t)
	alone := map[string]string{}
	for _, k := range kinds() {
		b := h.start(t, k, backends.Identity{})
		alone[k.name] = h.state(t)
		cleanUp(t, b)
		wantState(t, k.name+" after Cleanup", empty, h.state(t))
	}
	for _, first := range kinds() {
		for _, second := range kinds() {
			if first.name == second.name {
				continue
			}
			t.Run(first.name+" "+second.name, func(t *testing.T) {
				closeOf(t, h.start(t, first, backends.Identity{}))
				b := h.start(t, second, backends.Identity{})
				wantState(t, "after the start of the second", alone[second.name], h.state(t))
				cleanUp(t, b)
				wantState(t, "after its Cleanup", empty, h.state(t))
			})
		}
	}
}

// A backend that ends after one of another kind has started is named while it runs. Then the other one
// notices the end, and removes what is left.
func TestKindEndsAfterStartOfAnother(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, first := range kinds() {
		second := kinds()[0]
		if first.name == second.name {
			second = kinds()[1]
		}
		t.Run(first.name+" "+second.name, func(t *testing.T) {
			b := h.start(t, second, backends.Identity{})
			alone := h.state(t)
			cleanUp(t, b)
			ending := h.start(t, first, backends.Identity{})
			b = h.start(t, second, backends.Identity{})
			if got := problems(b); first.name != "iptables-legacy" && !strings.Contains(got, "may still run") {
				t.Errorf("problems while both run: got %q, want one of a backend that may still run", got)
			}
			if b.Abilities().Drifted(t.Context()) {
				t.Error("Drifted while both run: got true, want false")
			}
			closeOf(t, ending)
			for end := time.Now().Add(10 * time.Second); !b.Abilities().Drifted(t.Context()); time.Sleep(10 * time.Millisecond) {
				// A program that another test starts has the sockets of this process until it runs.
				if time.Now().After(end) {
					t.Error("Drifted 10 s after the end of the first: got false, want true")
					break
				}
			}
			testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, oneService()))
			wantState(t, "after that", alone, h.state(t))
			if got := problems(b); got != "" {
				t.Errorf("problems after that: got %q, want none", got)
			}
			cleanUp(t, b)
		})
	}
}

// problems returns the settings of the node that name objects of others, with what to do.
func problems(b proxy.Backend) string {
	var all []string
	for _, p := range b.Abilities().CheckNode(proxy.NewSnapshot(&proxy.Node{Name: "node-1"})) {
		if strings.Contains(p.Err.Error(), "connections to Services may go") {
			all = append(all, p.Field+" "+p.Err.Error())
		}
	}
	return strings.Join(all, "\n")
}

// Backends with identities of their own neither remove nor name each other, of the same kind and of
// different ones, whether they run or not; nor does one with defaults.
func TestIdentitiesLiveSideBySide(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, first := range kinds() {
		for _, second := range kinds() {
			t.Run(first.name+" "+second.name, func(t *testing.T) {
				one := h.start(t, first, backends.Identity{Name: "one", Mark: 1 << 24})
				before := h.state(t)
				closeOf(t, one)
				for _, identity := range []backends.Identity{{Name: "other", Mark: 1 << 25}, {}} {
					b := h.start(t, second, identity)
					if got := problems(b); got != "" {
						t.Errorf("problems: got %q, want none", got)
					}
					cleanUp(t, b)
					wantState(t, "after the Cleanup of another", before, h.state(t))
				}
				cleanUp(t, h.open(t, first, backends.Identity{Name: "one", Mark: 1 << 24}))
			})
		}
	}
}

// Objects of kube-proxy are named with the command that removes them, and stay.
func TestObjectsOfKubeProxyAreNamed(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, c := range []struct{ make, remove, want string }{
		{"nft add table ip kube-proxy", "nft delete table ip kube-proxy", "nft delete table ip kube-proxy"},
		{"iptables-nft -t nat -N KUBE-SERVICES", "iptables-nft -t nat -X KUBE-SERVICES", "kube-proxy --cleanup"},
		{"ip link add kube-ipvs0 type bridge", "ip link del kube-ipvs0", "kube-proxy --cleanup"},
	} {
		h.run(t, c.make)
		for _, k := range kinds() {
			b := h.start(t, k, backends.Identity{})
			if got := problems(b); !strings.Contains(got, c.want) {
				t.Errorf("%s after %q: problems: got %q, want one with %q", k.name, c.make, got, c.want)
			}
			cleanUp(t, b)
		}
		h.run(t, c.remove)
	}
}

func (h host) run(t *testing.T, command string) {
	t.Helper()
	f := strings.Fields(command)
	if _, err := netnstest.Run(t, h.NS, "", f[0], f[1:]...); err != nil {
		t.Fatal(err)
	}
}
