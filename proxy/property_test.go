package proxy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/endpoints"
)

// world makes random objects out of few names and addresses, so that they conflict, and
// has the current ones.
type world struct {
	random   *rand.Rand
	services map[string]*v1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	node     *v1.Node
}

func newWorld(seed uint64) *world {
	return &world{
		random:   rand.New(rand.NewPCG(seed, 1)),
		services: map[string]*v1.Service{},
		slices:   map[string]*discoveryv1.EndpointSlice{},
	}
}

func (w *world) chance(percent int) bool { return w.random.IntN(100) < percent }

func oneOf[T any](w *world, list ...T) T { return list[w.random.IntN(len(list))] }

func (w *world) service(name string) *v1.Service {
	s := apiService(name, "", created(int64(w.random.IntN(3))))
	s.Spec.ClusterIP = oneOf(w, "10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4", "fd00::1", "None", "", "nonsense")
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	if w.chance(40) {
		dualStack(oneOf(w, "10.96.0.1", "10.96.0.5"), oneOf(w, "fd00::1", "fd00::2"))(s)
	}
	s.Spec.Type = oneOf(w, v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer, "")
	s.Spec.Ports = nil
	for _, name := range []string{"http", "dns", "http"}[:w.random.IntN(4)] {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{
			Name:     name,
			Protocol: oneOf(w, v1.ProtocolTCP, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP, "", "QUIC"),
			Port:     oneOf[int32](w, 80, 80, 81, 0, 65536),
			NodePort: oneOf[int32](w, 0, 0, 30080, 30081, -1),
		})
	}
	w.external(s)
	s.Spec.SessionAffinity = oneOf(w, "", v1.ServiceAffinityNone, v1.ServiceAffinityClientIP, "Cookie")
	s.Annotations = map[string]string{}
	for _, key := range []string{"scheduler", "preserve", "unlisted"}[:w.random.IntN(4)] {
		s.Annotations[key] = oneOf(w, "", "a", "b", strings.Repeat("x", maxAnnotation+1))
	}
	if w.chance(10) {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}
	return s
}

func (w *world) external(s *v1.Service) {
	addrs := []string{"198.51.100.1", "198.51.100.2", "2001:db8::1", "10.96.0.1", "bad", "127.0.0.1", ""}
	for range w.random.IntN(3) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, oneOf(w, addrs...))
	}
	for range w.random.IntN(3) {
		in := v1.LoadBalancerIngress{IP: oneOf(w, addrs...)}
		if w.chance(20) {
			in.IPMode = new(v1.LoadBalancerIPModeProxy)
		}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, in)
	}
	for range w.random.IntN(3) {
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, oneOf(w, "192.168.0.0/24", "2001:db8::/32", "0.0.0.0/0", "x", ""))
	}
	if w.chance(30) {
		internalLocal(s)
	}
	if w.chance(30) {
		externalLocal(s)
	}
	s.Spec.HealthCheckNodePort = oneOf[int32](w, 0, 30001, -7)
}

func (w *world) slice(name string) *discoveryv1.EndpointSlice {
	s := apiSlice(name, oneOf(w, "a", "b", "c", ""))
	if w.chance(30) {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	s.Ports = nil
	for range w.random.IntN(3) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{
			Name:     oneOf(w, new("http"), new("http"), new("dns"), nil),
			Protocol: oneOf(w, new(v1.ProtocolTCP), new(v1.ProtocolUDP), nil),
			Port:     oneOf(w, new(int32(8080)), new(int32(8081)), nil),
		})
	}
	for range w.random.IntN(6) {
		addr := fmt.Sprintf("10.0.0.%d", 1+w.random.IntN(4))
		if s.AddressType == discoveryv1.AddressTypeIPv6 {
			addr = fmt.Sprintf("fd01::%d", 1+w.random.IntN(4))
		}
		if w.chance(5) {
			addr = "nonsense"
		}
		text := fmt.Sprint(addr, oneOf(w, "", "", " U", " T"), oneOf(w, "", " @here", " @there"), oneOf(w, "", " zone=x", " zone=y"))
		s.Endpoints = append(s.Endpoints, apiEndpoint(text))
	}
	return s
}

func (w *world) newNode() *v1.Node {
	n := apiNode("here", oneOf(w, "", "x", "y"))
	for range w.random.IntN(3) {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{
			Type:    oneOf(w, v1.NodeInternalIP, v1.NodeExternalIP, v1.NodeHostName),
			Address: oneOf(w, "192.168.0.1", "192.168.0.2", "2001:db8::9", "bad"),
		})
	}
	if w.chance(50) {
		n.Spec.PodCIDRs = []string{oneOf(w, "10.0.0.0/24", "10.1.0.0/24", "bad")}
	}
	return n
}

// step changes one object, also in the tracker.
func (w *world) step(tr ServiceChangeTracker) {
	switch name := oneOf(w, "a", "b", "c", "d"); w.random.IntN(10) {
	case 0, 1, 2:
		w.services[name] = w.service(name)
		tr.UpdateService(w.services[name])
	case 3:
		delete(w.services, name)
		tr.DeleteService(objectName(name))
	case 4, 5, 6, 7:
		w.slices[name] = w.slice(name)
		tr.UpdateEndpointSlice(w.slices[name])
	case 8:
		delete(w.slices, name)
		tr.DeleteEndpointSlice(objectName(name))
	case 9:
		w.node = w.newNode()
		tr.UpdateNode(w.node)
	}
}

// addAll adds the current objects to a tracker, in random order.
func (w *world) addAll(tr ServiceChangeTracker) {
	var calls []func()
	for _, s := range w.services {
		calls = append(calls, func() { tr.UpdateService(s) })
	}
	for _, s := range w.slices {
		calls = append(calls, func() { tr.UpdateEndpointSlice(s) })
	}
	if w.node != nil {
		calls = append(calls, func() { tr.UpdateNode(w.node) })
	}
	w.random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	for _, call := range calls {
		call()
	}
	tr.Synced()
}

func (w *world) deleteAll(tr ServiceChangeTracker) {
	for name := range w.services {
		tr.DeleteService(objectName(name))
	}
	for name := range w.slices {
		tr.DeleteEndpointSlice(objectName(name))
	}
	tr.UpdateNode(apiNode("here", ""))
}

func (w *world) options() TrackerOptions {
	return TrackerOptions{
		NodeName:          "here",
		NodeAddresses:     oneOf(w, nil, []netip.Addr{netip.MustParseAddr("192.168.0.7")}),
		NodePortAddresses: oneOf(w, NodePortAddresses{}, NodePortAddresses{All: true}, NodePortAddresses{Prefixes: prefixes("192.168.0.0/24")}),
		LocalTraffic:      oneOf(w, LocalTraffic{}, LocalTraffic{NodePodCIDRs: true}, LocalTraffic{Sources: prefixes("10.0.0.0/8")}),
		ServiceCIDRs:      oneOf(w, nil, prefixes("10.96.0.0/16", "fd00::/112")),
		MasqueradeAll:     w.chance(20),
		IgnoreExternalIPs: w.chance(20),
		LocalFallback:     oneOf(w, endpoints.FallbackTerminating, endpoints.FallbackNone, endpoints.FallbackCluster),
		Annotations:       oneOf(w, nil, []string{"scheduler"}, []string{"scheduler", "preserve"}),
	}
}

// kept is a snapshot with its fingerprint at the time when it was made.
type kept struct {
	snapshot Snapshot
	print    [32]byte
}

// TestHistoriesDoNotMatter: the content of a snapshot depends on the objects alone, not on
// the order of their changes; and snapshots do not change.
func TestHistoriesDoNotMatter(t *testing.T) {
	for seed := range uint64(150) {
		w := newWorld(seed)
		options := w.options()
		tr := NewServiceChangeTracker(options)
		tr.Synced()
		var last Snapshot
		var handedOut []kept
		for range 60 {
			w.step(tr)
			if !w.chance(40) {
				continue
			}
			s := newest(t, tr)
			checkChanges(t, last, s)
			last = s
			handedOut = append(handedOut, kept{s, fingerprint(s)})
			fresh := NewServiceChangeTracker(options)
			w.addAll(fresh)
			for _, d := range differences(s, newest(t, fresh)) {
				t.Error(d)
			}
		}
		for _, k := range handedOut {
			if fingerprint(k.snapshot) != k.print {
				t.Errorf("generation %d has changed after Next returned it", k.snapshot.Generation())
			}
		}
		w.deleteAll(tr)
		checkEmpty(t, tr)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// checkChanges compares Changes with a comparison of every port.
func checkChanges(t *testing.T, old, now Snapshot) {
	t.Helper()
	got := map[ServicePortName]Change{}
	var order []ServicePortName
	for c := range now.Changes(old) {
		name := c.New
		if name == nil {
			name = c.Old
		}
		if c.Old.Equal(c.New) {
			t.Errorf("%s: got a change without difference", name.Name)
		}
		got[name.Name] = c
		order = append(order, name.Name)
	}
	if !slices.IsSortedFunc(order, ServicePortName.Compare) {
		t.Errorf("changes: got order %v, want name order", order)
	}
	for p := range old.All() {
		n, _ := now.Get(p.Name)
		if c := got[p.Name]; !p.Equal(n) && (c.Old != p || c.New != n) {
			t.Errorf("%s: got change %+v, want from %+v to %+v", p.Name, c, p, n)
		}
	}
	for p := range now.All() {
		if _, ok := old.Get(p.Name); !ok && got[p.Name].New != p {
			t.Errorf("%s: got change %+v, want that it was added", p.Name, got[p.Name])
		}
	}
}
