package proxy

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// hugeService has many external IPs and ports.
func hugeService(name, clusterIP string, portCount, addrCount int) *v1.Service {
	list := objects.Many(portCount, func(i int) string { return fmt.Sprintf("p%d %d:%d", i, 1000+i, 30000+i) })
	return apiService(name, clusterIP, objects.Ports(list...), objects.ExternalIPs(claimed(addrCount)...))
}

// TestOneServiceIsBounded: a Service of some kilobytes, and a slice, must not use
// gigabytes on every node. ClusterIPs and node ports are always served.
func TestOneServiceIsBounded(t *testing.T) {
	const portCount, addrCount, hosts = 20, 400, 1000
	var addrs []string
	for i := range hosts {
		addrs = append(addrs, fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250))
	}
	tr := newTestTracker()
	tr.UpdateService(hugeService("huge", "10.96.0.1", portCount, addrCount))
	slice := apiSlice("huge-1", "huge", addrs...)
	slice.Ports = objects.SlicePorts(objects.Many(portCount, func(i int) string { return fmt.Sprintf("p%d 8080", i) })...)
	tr.UpdateEndpointSlice(slice)
	s := newest(t, tr)
	slots := 0
	for p := range s.All() {
		slots += len(p.Frontends) * len(p.Cluster)
		kinds := []FrontendKind{p.Frontends[0].Kind, p.Frontends[len(p.Frontends)-1].Kind}
		if !slices.Equal(kinds, []FrontendKind{ClusterIP, NodePort}) {
			t.Errorf("%s: got %v at the ends, want the ClusterIP and the node port", p.Name, kinds)
		}
	}
	if slots > maxSlots || slots < maxSlots/2 {
		t.Errorf("got %d pairs of frontend and endpoint, want up to %d", slots, maxSlots)
	}
	problems := problemText(s)
	if len(problems) != portCount || !strings.Contains(problems[0], "has 402 frontends and 1000 endpoints") ||
		!strings.HasSuffix(problems[0], ": 377 of the frontends are not served") {
		t.Errorf("got problems %.300q, want one for each port", problems)
	}
	tr.UpdateEndpointSlice(apiSlice("huge-1", "huge", "10.1.0.1"))
	if problems := problemText(newest(t, tr)); len(problems) != 0 {
		t.Errorf("with few endpoints: got problems %.300q, want none", problems)
	}
}

// TestPortsShareAddresses: the memory of a Service with many addresses does not grow with
// its ports.
func TestPortsShareAddresses(t *testing.T) {
	const copies = 50
	kept := func(portCount int) uint64 {
		s := hugeService("huge", "10.96.0.1", portCount, 1000)
		before := liveHeap()
		specs := make([]*serviceSpec, copies)
		for i := range specs {
			specs[i] = readService(s, &TrackerOptions{})
		}
		got := (liveHeap() - before) / copies
		runtime.KeepAlive(specs)
		return got
	}
	one, nine := kept(1), kept(9)
	t.Logf("1,000 addresses use %d bytes with one port, %d with nine", one, nine)
	if nine > 2*one {
		t.Errorf("1,000 addresses use %d bytes with one port and %d with nine, want at most twice as much", one, nine)
	}
}

// TestProblemsOfOneServiceAreBounded: a long list of invalid values causes a limited number
// of problems.
func TestProblemsOfOneServiceAreBounded(t *testing.T) {
	var nonsense []string
	for i := range 100_000 {
		nonsense = append(nonsense, fmt.Sprint("x", i))
	}
	tr := newTestTracker()
	tr.UpdateService(apiService("web", "10.96.0.1", objects.LoadBalancer("203.0.113.1"), objects.SourceRanges(nonsense...)))
	got := problemText(newest(t, tr))
	if len(got) != maxProblems+1 {
		t.Fatalf("got %d problems, want %d", len(got), maxProblems+1)
	}
	if want := "Service ns/web: spec: more than 100 errors; the others are not listed"; got[0] != want {
		t.Errorf("got first problem %q, want %q", got[0], want)
	}
}

// TestSourceRangesAreBounded: each range counts at each address and port. Ranges above the
// limit are ignored, and the rest of the Service works.
func TestSourceRangesAreBounded(t *testing.T) {
	var ranges, balancers []string
	for i := range 1000 {
		ranges = append(ranges, fmt.Sprintf("10.%d.%d.0/24", i/250, i%250))
		balancers = append(balancers, fmt.Sprintf("203.0.%d.%d", i/250, 1+i%250))
	}
	two := objects.Ports("http 80", "https 443")
	for _, tc := range []struct {
		balancers int
		want      int
		problems  []string
	}{
		{250, 1000, nil},
		{251, 996, []string{"Service ns/web: spec.loadBalancerSourceRanges: 1000 ranges are too many for 251 addresses at 2 ports: 4 of them are ignored, and their clients denied"}},
		{1000, 250, []string{"Service ns/web: spec.loadBalancerSourceRanges: 1000 ranges are too many for 1000 addresses at 2 ports: 750 of them are ignored, and their clients denied"}},
		{1, 1000, nil},
	} {
		tr := newTestTracker()
		tr.UpdateService(apiService("web", "10.96.0.1", two, objects.LoadBalancer(balancers[:tc.balancers]...), objects.SourceRanges(ranges...)))
		s := newest(t, tr)
		p := get(t, s, portName("web"))
		if len(p.Frontends) != 1+tc.balancers {
			t.Errorf("%d addresses: got %d frontends, want one more", tc.balancers, len(p.Frontends))
		}
		for _, f := range p.Frontends[1:] {
			if !f.Restricted || len(f.AllowedSources) != tc.want {
				t.Fatalf("%d addresses: %s: restricted %v to %d ranges, want to %d", tc.balancers, f.Addr, f.Restricted, len(f.AllowedSources), tc.want)
			}
		}
		if got := problemText(s); !slices.Equal(got, tc.problems) {
			t.Errorf("%d addresses: got problems %q, want %q", tc.balancers, got, tc.problems)
		}
	}
}

// TestProblemsOfOneSliceAreBounded: the invalid endpoints of a slice, too, cause a limited
// number of problems.
func TestProblemsOfOneSliceAreBounded(t *testing.T) {
	var bad []string
	for i := range 1000 {
		bad = append(bad, fmt.Sprint("x", i))
	}
	tr := newTestTracker()
	tr.UpdateEndpointSlice(apiSlice("web-1", "web", bad...))
	got := problemText(newest(t, tr))
	if len(got) != maxProblems+1 || !slices.Contains(got, "EndpointSlice ns/web-1: endpoints: 900 more errors") {
		t.Errorf("got %d problems %.300q, want 100, and one that counts the other 900", len(got), got)
	}
	tr.DeleteEndpointSlice(objectName("web-1"))
	checkEmpty(t, tr)
}

// TestManyPortsKeepTheirAddresses: each port of a Service with thousands of ports and many
// endpoints is served at the ClusterIP, an external IP, a load balancer's IP and its node port.
func TestManyPortsKeepTheirAddresses(t *testing.T) {
	const portCount, hosts = 4000, 150
	_, inSlice := portsOf(portCount)
	inService := objects.Ports(objects.Many(portCount, func(i int) string { return fmt.Sprintf("p%d %d:%d", i, 1+i, 20_000+i) })...)
	tr := newTestTracker()
	tr.UpdateService(apiService("sip", "10.96.0.1", inService, objects.LoadBalancer("203.0.113.1"), objects.ExternalIPs("203.0.113.2")))
	s := apiSlice("sip-1", "sip", manyAddrs(hosts)...)
	s.Ports = inSlice
	tr.UpdateEndpointSlice(s)
	now := newest(t, tr)
	for p := range now.All() {
		if len(p.Frontends) != 4 || len(p.Cluster) != hosts {
			t.Fatalf("%s: got frontends %v and %d endpoints, want 4 and %d", p.Name, frontendText(p.Frontends), len(p.Cluster), hosts)
		}
	}
	if problems := problemText(now); len(problems) != 0 || now.Len() != portCount {
		t.Errorf("got %d ports and problems %.300q, want %d and none", now.Len(), problems, portCount)
	}
}
