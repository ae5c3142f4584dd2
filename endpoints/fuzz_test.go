package endpoints

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// FuzzUpdate updates a Cache with three slices of arbitrary JSON, then deletes them, and
// compares the Cache with the oracle after each call.
func FuzzUpdate(f *testing.F) {
	seeds := []*discoveryv1.EndpointSlice{
		apiSlice("a", "web", "10.0.0.1 R @n1 zones=z1", "10.0.0.2 U"),
		apiSlice("b", "web", "10.0.0.1 T @n2 nodes=n1", "010.0.0.3"),
		apiSlice("a", "app", "10.0.0.1"),
		objects.Edited(apiSlice("a", "web", "2001:db8::1"), func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }),
		objects.Edited(apiSlice("b", "web", "10.0.0.1"), func(s *discoveryv1.EndpointSlice) {
			s.Ports = append(append(s.Ports, discoveryv1.EndpointPort{}), objects.SlicePorts("http 81")...)
		}),
	}
	for i := range seeds {
		var texts [3][]byte
		for j := range texts {
			data, err := json.Marshal(seeds[(i+j)%len(seeds)])
			testenv.NoError(f, err)
			texts[j] = data
		}
		f.Add(texts[0], texts[1], texts[2])
	}
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		view := View{NodeName: "n1", Zone: "z1"}
		cache, o := NewCache(view, nil), newOracle(view)
		var names []types.NamespacedName
		for _, data := range [][]byte{a, b, c} {
			var s discoveryv1.EndpointSlice
			if json.Unmarshal(data, &s) != nil || strings.Contains(string(data), `\u0000`) {
				return
			}
			object := s.DeepCopy()
			if err := cache.Update(&s); err != nil {
				fields(t, err)
			}
			if diff := cmp.Diff(object, &s); diff != "" {
				t.Fatalf("Update changed the object (-before +after):\n%s", diff)
			}
			o.update(&s)
			compareWithOracle(t, cache, o)
			names = append(names, types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
		}
		o.view = View{NodeName: "n2", Zone: "z2"}
		cache.SetView(o.view)
		for _, n := range names {
			compareWithOracle(t, cache, o)
			delete(o.objects, n)
			cache.Delete(n)
		}
		checkEmpty(t, cache)
	})
}

func compareWithOracle(t *testing.T, c *Cache, o *oracle) {
	t.Helper()
	want := map[string][]string{}
	for key, records := range o.records() {
		want[keyText(key)] = text(published(records))
	}
	if diff := cmp.Diff(want, contents(c)); diff != "" {
		t.Fatalf("contents (-want +got):\n%s", diff)
	}
	checkCache(t, c)
}

// FuzzParseAddr: an accepted address is one that an endpoint can have, and its text is
// parsed as the same address.
func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "010.0.0.01", "::ffff:10.0.0.1", "2001:db8::1", "fe80::1%eth0", "1..2.3", "0.0.0.00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			a, err := parseAddr(s, family)
			if err != nil {
				continue
			}
			if a.Is4() != (family == v1.IPv4Protocol) || a.Zone() != "" || a.Is4In6() || ipaddr.CheckEndpoint(a) != nil {
				t.Errorf("parseAddr(%q, %s): got %v, want an error", s, family, a)
			}
			if again, err := parseAddr(a.String(), family); again != a || err != nil {
				t.Errorf("parseAddr(%q, %s): got %v, whose text is parsed as %v, %v", s, family, a, again, err)
			}
		}
	})
}
