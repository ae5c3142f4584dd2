package proxy

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

func objectName(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: name}
}

func portName(service string) ServicePortName {
	return ServicePortName{NamespacedName: objectName(service), Port: "http", Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol}
}

type edit = func(*v1.Service)

// apiService makes Service ns/name at an address with the port http, TCP 80,
// and changes it.
func apiService(name, clusterIP string, edits ...edit) *v1.Service {
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: v1.ServiceSpec{
			Type:       v1.ServiceTypeClusterIP,
			ClusterIP:  clusterIP,
			ClusterIPs: []string{clusterIP},
			Ports:      []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
	for _, e := range edits {
		e(s)
	}
	return s
}

func created(second int64) edit {
	return func(s *v1.Service) { s.CreationTimestamp = metav1.Unix(second, 0) }
}

func dualStack(addrs ...string) edit {
	return func(s *v1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = addrs[0], addrs, nil
		for _, a := range addrs {
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, ipaddr.FamilyOf(netip.MustParseAddr(a)))
		}
	}
}

func ports(list ...v1.ServicePort) edit { return func(s *v1.Service) { s.Spec.Ports = list } }

func nodePort(n int32) edit { return func(s *v1.Service) { s.Spec.Ports[0].NodePort = n } }

func externalIPs(addrs ...string) edit { return func(s *v1.Service) { s.Spec.ExternalIPs = addrs } }

func sourceRanges(list ...string) edit {
	return func(s *v1.Service) { s.Spec.LoadBalancerSourceRanges = list }
}

// loadBalancer makes a Service of type LoadBalancer with these ingress addresses.
func loadBalancer(addrs ...string) edit {
	return func(s *v1.Service) {
		s.Spec.Type = v1.ServiceTypeLoadBalancer
		for _, a := range addrs {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: a})
		}
	}
}

func internalLocal(s *v1.Service) {
	s.Spec.InternalTrafficPolicy = new(v1.ServiceInternalTrafficPolicyLocal)
}

func externalLocal(s *v1.Service) {
	s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
}

// apiSlice makes EndpointSlice ns/name of a Service with port http, TCP 8080.
// An endpoint is an address, then perhaps a letter (U not ready, T terminating
// but serving), @ and the node, zone= and a hint.
func apiSlice(name, service string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns",
			Name:      name,
			Labels:    map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Protocol: new(v1.ProtocolTCP), Port: new(int32(8080))}},
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, apiEndpoint(e))
	}
	if len(endpoints) > 0 && strings.Contains(strings.Fields(endpoints[0])[0], ":") {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

func apiEndpoint(text string) discoveryv1.Endpoint {
	words := strings.Fields(text)
	e := discoveryv1.Endpoint{Addresses: words[:1]}
	for _, w := range words[1:] {
		switch {
		case w == "U":
			e.Conditions.Ready, e.Conditions.Serving = new(false), new(false)
		case w == "T":
			e.Conditions.Ready, e.Conditions.Serving, e.Conditions.Terminating = new(false), new(true), new(true)
		case strings.HasPrefix(w, "@"):
			e.NodeName = new(w[1:])
		case strings.HasPrefix(w, "zone="):
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: w[len("zone="):]}}}
		}
	}
	return e
}

// apiNode makes a Node in a zone with these internal addresses.
func apiNode(name, zone string, addrs ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if zone != "" {
		n.Labels = map[string]string{v1.LabelTopologyZone: zone}
	}
	for _, a := range addrs {
		n.Status.Addresses = append(n.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: a})
	}
	return n
}

// newTestTracker returns a synced tracker for node here at 192.168.0.1 with pods in
// 10.0.0.0/8.
func newTestTracker(edits ...func(*TrackerOptions)) *tracker {
	o := TrackerOptions{
		NodeName:      "here",
		NodeAddresses: []netip.Addr{netip.MustParseAddr("192.168.0.1")},
		LocalTraffic:  LocalTraffic{Sources: prefixes("10.0.0.0/8")},
	}
	for _, e := range edits {
		e(&o)
	}
	t := NewServiceChangeTracker(o).(*tracker) //nolint:errcheck // nothing else is made
	t.Synced()
	return t
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// newest returns the tracker's current snapshot.
func newest(tb testing.TB, t Source) Snapshot {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	s, err := t.Next(ctx, Snapshot{})
	if err != nil {
		tb.Fatalf("Next: got error %v, want a snapshot", err)
	}
	return s
}

// get returns a port of a snapshot, or fails the test.
func get(tb testing.TB, s Snapshot, name ServicePortName) *ServicePort {
	tb.Helper()
	p, ok := s.Get(name)
	if !ok {
		tb.Fatalf("%s is not in the snapshot", name)
	}
	return p
}

// frontendText formats frontends: kind, address, and the allowed sources if restricted.
func frontendText(list []Frontend) []string {
	var out []string
	for _, f := range list {
		text := fmt.Sprintf("%s %s", f.Kind, f.Addr)
		if f.Restricted {
			text += fmt.Sprint(" ", f.AllowedSources)
		}
		out = append(out, text)
	}
	return out
}

func problemText(s Snapshot) []string {
	var out []string
	for p := range s.Problems() {
		out = append(out, p.Error())
	}
	return out
}

func snapshotNames(s Snapshot) []string {
	var out []string
	for p := range s.All() {
		out = append(out, p.Name.String())
	}
	return out
}

// portText formats a service port and everything it refers to.
func portText(p *ServicePort) string {
	if p == nil {
		return "none"
	}
	flat := *p
	flat.Cluster, flat.Local = nil, nil
	text := fmt.Sprintf("%+v", flat)
	for _, pool := range [...]Pool{PoolCluster, PoolLocal} {
		text += fmt.Sprintf(" %s:", pool)
		for _, e := range p.Pool(pool) {
			text += fmt.Sprintf(" %+v", *e)
		}
	}
	return text
}

// fingerprint is a hash of a snapshot and everything it refers to.
func fingerprint(s Snapshot) [sha256.Size]byte {
	h := sha256.New()
	h.Write(fmt.Appendf(nil, "%d %+v %q\n", s.Generation(), s.Node(), problemText(s)))
	for p := range s.All() {
		h.Write(fmt.Appendf(nil, "%s\n", portText(p)))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// differences describes how two snapshots differ in content.
func differences(got, want Snapshot) []string {
	var out []string
	if !got.Node().Equal(want.Node()) {
		out = append(out, fmt.Sprintf("node: got %+v, want %+v", got.Node(), want.Node()))
	}
	if g, w := problemText(got), problemText(want); !slices.Equal(g, w) {
		out = append(out, fmt.Sprintf("problems:\n got %s\nwant %s", strings.Join(g, "\n     "), strings.Join(w, "\n     ")))
	}
	for p := range want.All() {
		if g, ok := got.Get(p.Name); !ok || !g.Equal(p) {
			out = append(out, fmt.Sprintf("%s:\n got %s\nwant %s", p.Name, portText(g), portText(p)))
		}
	}
	for p := range got.All() {
		if _, ok := want.Get(p.Name); !ok {
			out = append(out, fmt.Sprintf("%s: got %s, want none", p.Name, portText(p)))
		}
	}
	return out
}
