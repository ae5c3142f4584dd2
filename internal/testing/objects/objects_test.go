package objects_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Texts of another form panic, so that a test with a mistake does not pass.
func TestMistakesPanic(t *testing.T) {
	for what, mistake := range map[string]func(){
		"letter":       func() { objects.Endpoint("10.0.0.1 Z") },
		"port":         func() { objects.Service("web", "10.96.0.1", objects.Ports("http eighty")) },
		"slice port":   func() { objects.SlicePorts("http:80") },
		"dual stack":   func() { objects.Service("web", "10.96.0.1 nonsense") },
		"other object": func() { objects.Hand(nil, &v1.Pod{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: got no panic, want one", what)
				}
			}()
			mistake()
		}()
	}
}

// Each combination of conditions has one letter.
func TestLetters(t *testing.T) {
	letters, conditions := map[string]bool{}, map[objects.Letter]bool{}
	for _, l := range objects.Letters() {
		letters[l.Letter] = true
		l.Letter = ""
		conditions[l] = true
	}
	if len(letters) != 8 || len(conditions) != 8 {
		t.Errorf("got %d letters for %d combinations, want 8 for 8", len(letters), len(conditions))
	}
}

// A seed repeats the objects, and an old object stays as it is.
func TestGeneratorRepeats(t *testing.T) {
	seed := testenv.Random(t).Uint64()
	run := func() (all []any) {
		g := objects.Generator{Rand: rand.New(rand.NewPCG(seed, 0)), Unusual: 10, Scarce: true, Node: "here", Annotations: []string{"a", "b"}}
		var service *v1.Service
		var slice *discoveryv1.EndpointSlice
		for range 100 {
			serviceBefore, sliceBefore := service.DeepCopy(), slice.DeepCopy()
			nextService, nextSlice := g.Service("ns/a", service), g.Slice("ns/a", slice)
			if diff := cmp.Diff(serviceBefore, service) + cmp.Diff(sliceBefore, slice); diff != "" {
				t.Fatalf("an old object (-before +after):\n%s", diff)
			}
			service, slice = nextService, nextSlice
			all = append(all, service, slice, g.RandomNode())
		}
		return all
	}
	if diff := cmp.Diff(run(), run()); diff != "" {
		t.Errorf("objects of one seed (-first +second):\n%s", diff)
	}
}

// Without unusual values there are only usual ones, and with them all kinds occur. Scarce addresses
// are few.
func TestGeneratorVaries(t *testing.T) {
	random := testenv.Random(t)
	seen := func(g objects.Generator) map[string][]string {
		g.Rand, g.Node = random, "here"
		all := map[string]map[string]bool{}
		add := func(field string, value any) {
			if all[field] == nil {
				all[field] = map[string]bool{}
			}
			all[field][fmt.Sprint(value)] = true
		}
		for i := range 2000 {
			s, e := g.Service("ns/"+string(rune('a'+i%26)), nil), g.Slice("ns/a", nil)
			add("type", s.Spec.Type)
			add("affinity", s.Spec.SessionAffinity)
			add("policy", s.Spec.ExternalTrafficPolicy)
			add("ClusterIP", s.Spec.ClusterIP)
			add("families", s.Spec.IPFamilies)
			add("address type", e.AddressType)
			for _, p := range s.Spec.Ports {
				add("protocol", p.Protocol)
			}
		}
		out := map[string][]string{}
		for field, values := range all {
			out[field] = slices.Sorted(maps.Keys(values))
		}
		return out
	}
	usual, unusual, scarce := seen(objects.Generator{}), seen(objects.Generator{Unusual: 3}), seen(objects.Generator{Scarce: true})
	for field, want := range map[string][2][]string{
		"type":         {{"ClusterIP", "LoadBalancer", "NodePort"}, {"", "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"}},
		"affinity":     {{"ClientIP", "None"}, {"", "ClientIP", "Cookie", "None"}},
		"policy":       {{"", "Cluster", "Local"}, {"", "Cluster", "Local"}},
		"families":     {{"[IPv4 IPv6]", "[IPv4]", "[IPv6 IPv4]", "[IPv6]", "[]"}, {"[IPv4 IPv6]", "[IPv4]", "[IPv6 IPv4]", "[IPv6]", "[]"}},
		"address type": {{"IPv4", "IPv6"}, {"FQDN", "IPv4", "IPv6"}},
		"protocol":     {{"SCTP", "TCP", "UDP"}, {"", "HTTP", "SCTP", "TCP", "UDP"}},
	} {
		testenv.Same(t, want, [2][]string{usual[field], unusual[field]}, "%s without and with unusual values", field)
	}
	if many, few := len(usual["ClusterIP"]), len(scarce["ClusterIP"]); many != 2*26 || few != 12 {
		t.Errorf("got %d ClusterIPs and %d scarce ones, want 52 and 12", many, few)
	}
}
