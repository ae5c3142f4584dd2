package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// wish is a claim of one port of a Service, as naive represents it.
type wish struct {
	address string
	kind    FrontendKind
	service *v1.Service
	port    ServicePortName
}

func (w wish) compare(o wish) int {
	return cmp.Or(
		cmp.Compare(rank(w.kind), rank(o.kind)),
		w.service.CreationTimestamp.Compare(o.service.CreationTimestamp.Time),
		w.port.Compare(o.port),
	)
}

// wishes returns the claims of a Service, in the order in which problems name them.
func wishes(s *v1.Service) (out []wish) {
	for i, family := range s.Spec.IPFamilies {
		for _, port := range s.Spec.Ports {
			name := ServicePortName{NamespacedName: objectName(s.Name), Port: port.Name, Protocol: port.Protocol, Family: family}
			add := func(kind FrontendKind, addr string, number int32) {
				text := fmt.Sprintf("%s/%s", netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(number)), port.Protocol)
				if !slices.ContainsFunc(out, func(w wish) bool { return w.port == name && w.address == text }) {
					out = append(out, wish{text, kind, s, name})
				}
			}
			add(ClusterIP, s.Spec.ClusterIPs[i], port.Port)
			balancers := map[string]bool{}
			for _, in := range s.Status.LoadBalancer.Ingress {
				balancers[in.IP] = true
			}
			for _, addr := range s.Spec.ExternalIPs {
				if !balancers[addr] && ipaddr.FamilyOf(netip.MustParseAddr(addr)) == family {
					add(ExternalIP, addr, port.Port)
				}
			}
			for _, in := range s.Status.LoadBalancer.Ingress {
				if ipaddr.FamilyOf(netip.MustParseAddr(in.IP)) == family {
					add(LoadBalancer, in.IP, port.Port)
				}
			}
			if port.NodePort != 0 {
				add(NodePort, ipaddr.Unspecified(family).String(), port.NodePort)
			}
		}
	}
	return out
}

// naive computes the owners of all addresses.
func naive(services map[string]*v1.Service) holders {
	first := holders{}
	for _, s := range services {
		for _, w := range wishes(s) {
			if f, ok := first[w.address]; !ok || w.compare(f) < 0 {
				first[w.address] = w
			}
		}
	}
	return first
}

// outcome formats the owners of all addresses, and the problems of the other Services.
func outcome(services map[string]*v1.Service, first holders) (owned map[string][]string, problems []string) {
	owned = map[string][]string{}
	for address, w := range first {
		owned[address] = []string{w.port.Name + ":" + w.port.Port}
	}
	var list []*Problem
	for _, s := range services {
		for _, kind := range []FrontendKind{ClusterIP, ExternalIP, LoadBalancer, NodePort} {
			list = append(list, naiveProblems(s, kind, first)...)
		}
	}
	sortProblems(list)
	for _, p := range list {
		problems = append(problems, p.Error())
	}
	return owned, problems
}

func naiveProblems(s *v1.Service, kind FrontendKind, first holders) (out []*Problem) {
	var lost []wish
	for _, w := range wishes(s) {
		if w.kind == kind && first[w.address].port != w.port {
			lost = append(lost, w)
		}
	}
	var named []string // owners
	count := map[string]int{}
	address := map[string]string{}
	for _, w := range lost[:min(len(lost), maxNamedConflicts)] {
		owner := first[w.address].service.Name
		if count[owner]++; count[owner] == 1 {
			named = append(named, owner)
			address[owner] = w.address
		}
	}
	for i, owner := range named {
		if i == len(named)-1 {
			count[owner] += max(0, len(lost)-maxNamedConflicts)
		}
		text := fmt.Sprintf("%s already belongs to Service ns/%s", address[owner], owner)
		if more := count[owner] - 1; more > 0 {
			text += fmt.Sprintf(", and %d more are taken", more)
		}
		out = append(out, &Problem{Kind: "Service", NamespacedName: objectName(s.Name), Field: candidateField(kind), Err: fmt.Errorf("%s", text)})
	}
	return out
}

// greedyService claims random addresses out of few.
func greedyService(random *rand.Rand, name string) *v1.Service {
	g := objects.Generator{Rand: random, Scarce: true}
	s := g.Service("ns/"+name, nil)
	s.Spec.HealthCheckNodePort, s.CreationTimestamp = 0, metav1.Unix(int64(random.IntN(4)), 0)
	both := []string{fmt.Sprintf("10.96.0.%d", 1+random.IntN(6)), fmt.Sprintf("fd00:96::%d", 1+random.IntN(6))}
	objects.ClusterIPs(both...)(s)
	s.Spec.IPFamilies = s.Spec.IPFamilies[:1+random.IntN(2)]
	s.Spec.ClusterIPs = both[:len(s.Spec.IPFamilies)]
	s.Status.LoadBalancer.Ingress = slices.DeleteFunc(s.Status.LoadBalancer.Ingress, func(in v1.LoadBalancerIngress) bool { return in.IP == "" || in.IPMode != nil })
	return s
}

// holders are the owners of addresses.
type holders map[string]wish

// replace replaces the Service with a name, among Services without creation timestamps; s is
// nil to remove it.
func (h holders) replace(services map[string]*v1.Service, name string, s *v1.Service) {
	var mine []wish
	if s != nil {
		mine = wishes(s)
	}
	delete(services, name)
	for address, w := range h {
		if w.service.Name != name {
			continue
		}
		delete(h, address)
		if slices.ContainsFunc(mine, func(m wish) bool { return m.address == address }) {
			continue // It keeps the address.
		}
		for _, other := range services {
			for _, o := range wishes(other) {
				if now, ok := h[address]; o.address == address && (!ok || o.compare(now) < 0) {
					h[address] = o
				}
			}
		}
	}
	if s != nil {
		services[name] = s
	}
	for _, m := range mine {
		if _, ok := h[m.address]; !ok {
			h[m.address] = m
		}
	}
}

// compareOwners compares the owners and the problems of a snapshot.
func compareOwners(t *testing.T, step int, s Snapshot, wantOwners map[string][]string, wantProblems []string) {
	t.Helper()
	if got := owners(s); !maps.EqualFunc(wantOwners, got, slices.Equal) { // cmp is slow
		t.Fatalf("step %d: owners (-want +got):\n%s", step, gocmp.Diff(wantOwners, got))
	}
	if got := problemText(s); !slices.Equal(wantProblems, got) {
		t.Fatalf("step %d: problems (-want +got):\n%s", step, gocmp.Diff(wantProblems, got))
	}
}

// TestOwnersAgreeWithNaiveOnes makes random changes of Services that claim the same
// addresses, and compares the tracker with a computation from all objects. Without creation
// timestamps, the owner of an address keeps it.
func TestOwnersAgreeWithNaiveOnes(t *testing.T) {
	random := testenv.Random(t)
	for round := range testenv.Rounds(20) {
		ageless := round%2 == 1
		tr := newTestTracker(func(o *TrackerOptions) { o.NodePortAddresses = NodePortAddresses{All: true} })
		services, held := map[string]*v1.Service{}, holders{}
		for step := range 80 {
			for range 1 + random.IntN(3) {
				name := fmt.Sprintf("s%d", random.IntN(12))
				s := changedService(random, name, services[name], ageless)
				held.replace(services, name, s)
				if s == nil {
					tr.DeleteService(objectName(name))
				} else {
					tr.UpdateService(s)
				}
			}
			first := held
			if !ageless {
				first = naive(services)
			}
			wantOwners, wantProblems := outcome(services, first)
			compareOwners(t, step, newest(t, tr), wantOwners, wantProblems)
		}
		for _, name := range slices.Sorted(maps.Keys(services)) {
			tr.DeleteService(objectName(name))
		}
		checkEmpty(t, tr)
	}
}

// changedService returns the next reading of a Service; nil if it is removed.
func changedService(random *rand.Rand, name string, was *v1.Service, ageless bool) *v1.Service {
	s := greedyService(random, name)
	switch choice := random.IntN(8); {
	case choice < 2:
		return nil
	case ageless:
		s.CreationTimestamp = metav1.Time{}
	case choice == 2 && was != nil: // change only the age
		age := s.CreationTimestamp
		s = was.DeepCopy()
		s.CreationTimestamp = age
	}
	return s
}
