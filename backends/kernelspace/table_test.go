package kernelspace_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// sample is a row of the table: objects that need a capability.
type sample struct {
	capability string
	change     func(*v1.Service)
	endpoints  []string
	// about is the field of which a limit says that HNS does not have the capability at all, or, with a dot at
	// its end, how the names of such fields begin. Without it, a limit is one of some packets.
	about string
	// rule is what load balancers must have if there is no limit; empty if the packets show it.
	rule string
	// options, if not nil, changes what the tracker is told of the node.
	options func(*proxy.TrackerOptions)
}

func samples() []sample {
	both := []string{"10.0.0.1 @node-1", "10.1.0.1 @node-2"}
	and := func(changes ...objects.Edit) objects.Edit {
		return func(s *v1.Service) {
			for _, change := range changes {
				change(s)
			}
		}
	}
	balanced := and(objects.NodePort(30080), objects.ExternalIPs("203.0.113.1"), objects.LoadBalancer("203.0.113.2"))
	sticky := func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP }
	return []sample{
		{capability: "ClusterIP, NodePort, external IP, load balancer IP", change: balanced, endpoints: both},
		{capability: "UDP", change: objects.Ports("http 80/UDP"), endpoints: both},
		{capability: "IPv6", change: objects.ClusterIPs("fd00:96::1"), endpoints: []string{"fd00::2 @node-2"}},
		{capability: "internal traffic policy Local", change: objects.InternalLocal, endpoints: both},
		{capability: "external traffic policy Local", change: and(balanced, objects.ExternalLocal), endpoints: both},
		{capability: "terminating endpoints", change: balanced, endpoints: []string{"10.1.0.2 T @node-2"}},
		{capability: "zone and node hints", endpoints: []string{"10.0.0.1 @node-1 nodes=node-1", "10.1.0.1 @node-2 nodes=node-2"}},
		{capability: "host-network endpoints", endpoints: []string{nodeAddr.String() + " @node-1", "10.1.0.1 @node-2"}},
		{capability: "load balancer source ranges", change: and(balanced, objects.SourceRanges("192.0.2.0/24")), endpoints: both},
		{capability: "ClientIP affinity", change: sticky, endpoints: both, about: "spec.sessionAffinity", rule: "distribution 2"},
		{capability: "ClientIP affinity ends at its timeout", change: sticky, endpoints: both, about: "spec.sessionAffinity."},
		{capability: "refusals without endpoints", about: "spec"},
		{capability: "choice of node port addresses", change: balanced, endpoints: both, options: func(o *proxy.TrackerOptions) {
			o.NodePortAddresses = proxy.NodePortAddresses{Prefixes: []netip.Prefix{netip.PrefixFrom(nodeAddr, 32)}}
		}},
	}
}

// snapshot returns what a tracker makes of the sample.
func (s *sample) snapshot(t *testing.T) proxy.Snapshot {
	t.Helper()
	o := proxy.TrackerOptions{
		NodeName: "node-1", NodeAddresses: []netip.Addr{nodeAddr, nodeAddr6}, NodePortAddresses: proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("10.0.0.0/8", "fd00::/64")},
	}
	if s.options != nil {
		s.options(&o)
	}
	service := objects.Service("test/web", clusterIP(1).String())
	if s.change != nil {
		s.change(service)
	}
	slice := objects.Slice("test/web-1", "web", s.endpoints...)
	slice.Ports[0].Protocol = &service.Spec.Ports[0].Protocol
	snapshot := snapshots.Of(t, o, service, slice)
	if snapshot.Len() != 1 {
		t.Fatalf("%s: got %d service ports, want 1", s.capability, snapshot.Len())
	}
	return snapshot
}

// verdict returns whether the backend can do what the sample needs, by the rules that it makes in a simulated
// HNS: yes, with limits, or no; and what the limits are. Where rules differ from Route, there must be some.
func (s *sample) verdict(t *testing.T, version hcn.Version) (word, what string) {
	t.Helper()
	m := newMachine(t, version)
	m.options.Families = nil
	m.restart()
	snapshot := s.snapshot(t)
	err := m.applySnapshot(snapshot)
	forwarded, right, all := s.packets(m, snapshot)
	var limits []string
	for p := range snapshot.All() {
		if err != nil {
			_, text, _ := strings.Cut(err.Error(), "on this system: ")
			return "no", text
		}
		for _, l := range m.backend.Abilities().CheckLimits(snapshot.Node(), p) {
			beginning, isBeginning := strings.CutSuffix(s.about, ".")
			if s.about == "" || l.Field == s.about || isBeginning && strings.HasPrefix(l.Field, beginning) {
				limits = append(limits, l.Err.Error())
			}
		}
	}
	what = strings.Join(limits, "; ")
	switch {
	case len(limits) == 0 && right < all && s.about == "":
		t.Errorf("%s, HNS %s: %d of %d packets go where Route says, want all, or a limit", s.capability, version, right, all)
		return "no", ""
	case len(limits) == 0 && !strings.Contains(m.Dump(), s.rule):
		t.Errorf("%s, HNS %s: got\n%s\nwant %q, or a limit", s.capability, version, m.Dump(), s.rule)
		return "no", ""
	case len(limits) == 0:
		return "yes", ""
	case s.about != "", forwarded == 0:
		return "no", what
	}
	return "with limits", what
}

// packets returns how many packets of clients inside, outside and in an allowed range have a load
// balancer, how many of them all reach the endpoints of Route, and how many there are.
func (s *sample) packets(m *machine, snapshot proxy.Snapshot) (forwarded, right, all int) {
	at := map[string]hcn.Endpoint{}
	for _, e := range m.Endpoints() {
		at[e.ID] = e
	}
	served := map[string][]netip.AddrPort{}
	for _, b := range m.LoadBalancers() {
		vip, mapping := nodeAddr, b.PortMappings[0]
		if mapping.Flags&hcn.LocalRoutedVIP == 0 {
			vip = b.FrontendVIPs[0]
		}
		var to []netip.AddrPort
		for _, id := range b.Endpoints {
			to = append(to, netip.AddrPortFrom(at[id].Addresses[0], mapping.InternalPort))
		}
		slices.SortFunc(to, netip.AddrPort.Compare)
		served[fmt.Sprint(mapping.Protocol, netip.AddrPortFrom(vip, mapping.ExternalPort))] = to
	}
	for p := range snapshot.All() {
		for _, f := range p.Frontends {
			to := f.Addr
			if f.Kind == proxy.NodePort {
				to = netip.AddrPortFrom(nodeAddr, to.Port())
			}
			for _, from := range map[bool][]string{true: {"10.0.0.8:4000", "192.0.2.1:4000", "198.51.100.1:4000"}, false: {"[fd00::8]:4000", "[2001:db8::1]:4000"}}[to.Addr().Is4()] {
				v := proxy.Route(snapshot, proxy.Packet{Protocol: p.Name.Protocol, Source: netip.MustParseAddrPort(from), Destination: to, ToNode: f.Kind == proxy.NodePort})
				var want []netip.AddrPort
				for _, e := range v.Endpoints {
					want = append(want, e.Addr)
				}
				got := served[fmt.Sprint(map[v1.Protocol]uint8{v1.ProtocolTCP: 6, v1.ProtocolUDP: 17}[p.Name.Protocol], to)]
				if all++; slices.Equal(got, want) {
					right++
				}
				if len(got) > 0 {
					forwarded++
				}
			}
		}
	}
	return forwarded, right, all
}

// The lines around the table in the document.
const (
	tableDocument = "../../docs/dataplane/kernelspace.md"
	tableBegins   = "<!-- capabilities by rules -->\n"
	tableEnds     = "<!-- end of capabilities by rules -->\n"
)

// The document has a table of what HNS can do for Services. It is not proven by packets, but by rules: load
// balancers in a simulated HNS, compared with Route, and the limits that the backend reports.
func TestTable(t *testing.T) {
	var table strings.Builder
	table.WriteString("| | Server 2019 | Server 2022 | Server 2025 | what |\n|---|---|---|---|---|\n")
	for _, s := range samples() {
		table.WriteString("| " + s.capability + " |")
		var reasons []string
		for _, version := range []hcn.Version{server2019(), noModify(), newest()} {
			word, what := s.verdict(t, version)
			table.WriteString(" " + word + " |")
			if what != "" && !slices.Contains(reasons, what) {
				reasons = append(reasons, what)
			}
		}
		table.WriteString(strings.TrimRight(" "+strings.Join(reasons, "; "), " ") + " |\n")
	}
	text := string(must(os.ReadFile(tableDocument)))
	before, rest, begins := strings.Cut(text, tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	want := before + tableBegins + table.String() + tableEnds + after
	switch {
	case !begins || !ends:
		t.Fatalf("%s has no lines %q and %q", tableDocument, tableBegins, tableEnds)
	case want == text || t.Failed():
	case testenv.Flag(t, "VIPKIT_UPDATE"):
		if err := os.WriteFile(tableDocument, []byte(want), 0o644); err != nil { //nolint:gosec // a document is readable for all users
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from this run; VIPKIT_UPDATE=1 updates it (-is +should be):\n%s",
			tableDocument, cmp.Diff(strings.Split(text, "\n"), strings.Split(want, "\n")))
	}
}
