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
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// sample is a row of the table: objects that need a capability.
type sample struct {
	capability string
	change     func(*v1.Service)
	endpoints  []discoveryv1.Endpoint
	// about is the field of which a limit says that HNS does not have the capability at all, or, with a dot at
	// its end, how the names of such fields begin. Without it, a limit is one of some packets.
	about string
	// rule is what load balancers must have if there is no limit; empty if the packets show it.
	rule string
	// options, if not nil, changes what the tracker is told of the node.
	options func(*proxy.TrackerOptions)
}

func samples() []sample {
	here, there := endpointOn("node-1", pod(1)), endpointOn("node-2", elsewhere(1))
	both := []discoveryv1.Endpoint{here, there}
	balanced := func(s *v1.Service) {
		s.Spec.Type, s.Spec.Ports[0].NodePort, s.Spec.ExternalIPs = v1.ServiceTypeLoadBalancer, 30080, []string{"203.0.113.1"}
		s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
		s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "203.0.113.2"}}
	}
	and := func(changes ...func(*v1.Service)) func(*v1.Service) {
		return func(s *v1.Service) {
			for _, change := range changes {
				change(s)
			}
		}
	}
	internal := func(s *v1.Service) { s.Spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyLocal) }
	external := func(s *v1.Service) { s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal }
	sticky := func(s *v1.Service) { s.Spec.SessionAffinity = v1.ServiceAffinityClientIP }
	ending := endpointOn("node-2", elsewhere(2))
	ending.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	hinted, host := both, endpointOn("node-1", nodeAddr)
	hinted = slices.Clone(hinted)
	hinted[0].Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "node-1"}}}
	hinted[1].Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "node-2"}}}
	return []sample{
		{capability: "ClusterIP, NodePort, external IP, load balancer IP", change: balanced, endpoints: both},
		{capability: "UDP", change: func(s *v1.Service) { s.Spec.Ports[0].Protocol = v1.ProtocolUDP }, endpoints: both},
		{capability: "IPv6", change: func(s *v1.Service) { s.Spec.ClusterIP = "fd00:96::1" }, endpoints: []discoveryv1.Endpoint{endpointOn("node-2", netip.MustParseAddr("fd00::2"))}},
		{capability: "internal traffic policy Local", change: internal, endpoints: both},
		{capability: "external traffic policy Local", change: and(balanced, external), endpoints: both},
		{capability: "terminating endpoints", change: balanced, endpoints: []discoveryv1.Endpoint{ending}},
		{capability: "zone and node hints", endpoints: hinted},
		{capability: "host-network endpoints", endpoints: []discoveryv1.Endpoint{host, there}},
		{capability: "load balancer source ranges", change: and(balanced, func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} }), endpoints: both},
		{capability: "ClientIP affinity", change: sticky, endpoints: both, about: "spec.sessionAffinity", rule: "distribution 2"},
		{capability: "ClientIP affinity ends at its timeout", change: sticky, endpoints: both, about: "spec.sessionAffinity."},
		{capability: "refusals without endpoints", about: "spec"},
		{capability: "choice of node port addresses", change: balanced, endpoints: both, options: func(o *proxy.TrackerOptions) {
			o.NodePortAddresses = proxy.NodePortAddresses{Prefixes: []netip.Prefix{netip.PrefixFrom(nodeAddr, 32)}}
		}},
	}
}

func endpointOn(node string, a netip.Addr) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: &node}
}

// snapshot returns what a tracker makes of the sample.
func (s *sample) snapshot(t *testing.T) proxy.Snapshot {
	t.Helper()
	o := proxy.TrackerOptions{
		NodeName: "node-1", NodeAddresses: []netip.Addr{nodeAddr, nodeAddr6}, NodePortAddresses: proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/64")}},
	}
	if s.options != nil {
		s.options(&o)
	}
	tracker := proxy.NewServiceChangeTracker(o)
	service := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: "web"},
		Spec:       v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: clusterIP(1).String(), Ports: []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80}}},
	}
	if s.change != nil {
		s.change(service)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "test", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: s.endpoints,
		Ports: []discoveryv1.EndpointPort{{Protocol: &service.Spec.Ports[0].Protocol, Port: new(int32(8080))}},
	}
	if strings.Contains(service.Spec.ClusterIP, ":") {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	tracker.UpdateService(service)
	tracker.UpdateEndpointSlice(slice)
	tracker.Synced()
	snapshot := must(tracker.Next(t.Context(), proxy.Snapshot{}))
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
			_, text, _ := strings.Cut(err.Error(), "unsupported on this system: ")
			return "no", text
		}
		c, _ := m.backend.(backends.LimitChecker)
		for _, l := range c.CheckLimits(snapshot.Node(), p) {
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
