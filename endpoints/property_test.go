package endpoints

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
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

func TestCacheAgainstOracle(t *testing.T) {
	r := testenv.Random(t)
	const histories, steps = 30, 150
	for i := range histories {
		h := newHistory(rand.New(rand.NewPCG(r.Uint64(), 0)))
		for step := range steps {
			if problem := h.step(); problem != "" {
				t.Fatalf("history %d, step %d: %s", i, step, problem)
			}
		}
		checkCache(t, h.cache)
		if problem := h.checkReturned(); problem != "" {
			t.Fatalf("history %d: %s", i, problem)
		}
		for name := range h.oracle.objects {
			h.cache.Delete(name)
		}
		checkEmpty(t, h.cache)
	}
}

// history makes the same random calls of a Cache and of the oracle.
type history struct {
	objects.Generator
	cache   *Cache
	oracle  *oracle
	noticed map[ServicePortName]int
	// records are those of the oracle before the step.
	records map[ServicePortName][]*Endpoint
	// returned are lists that the Cache returned, with copies from that time.
	returned []returnedList
}

type returnedList struct {
	list   []*Endpoint
	copied []string
}

func newHistory(r *rand.Rand) *history {
	h := &history{Generator: objects.Generator{Rand: r, Unusual: 8, Scarce: true, Node: "here"}, noticed: map[ServicePortName]int{}}
	view := h.view()
	h.oracle = newOracle(view)
	h.cache = NewCache(view, func(k ServicePortName) { h.noticed[k]++ })
	return h
}

// step makes a random call and checks its effects. It returns a failure, or an empty text.
func (h *history) step() string {
	clear(h.noticed)
	exact := true
	switch h.IntN(10) {
	case 0:
		view := h.view()
		h.oracle.view = view
		h.cache.SetView(view)
		// The order of records of several slices may change.
		exact = false
	case 1, 2:
		name := sliceName(h.pick("0", "1", "2", "3", "4", "5", "unknown"))
		delete(h.oracle.objects, name)
		h.cache.Delete(name)
	default:
		name := sliceName(h.pick("0", "1", "2", "3", "4", "5"))
		s := h.Slice(name.String(), h.oracle.objects[name])
		h.oracle.update(s)
		object := s.DeepCopy()
		_ = h.cache.Update(s) // TestUpdateReads* checks the errors.
		if diff := cmp.Diff(object, s); diff != "" {
			return "Update changed the object (-before +after):\n" + diff
		}
	}
	now := h.oracle.records()
	if problem := h.checkNotices(now, exact); problem != "" {
		return problem
	}
	h.records = now
	// Without reading, one merge has to handle several changes.
	if h.IntN(3) == 0 {
		return h.checkEndpoints()
	}
	return ""
}

func (h *history) checkNotices(now map[ServicePortName][]*Endpoint, exact bool) string {
	for _, key := range keysOf(now, h.records, h.noticed) {
		changed := !slices.EqualFunc(now[key], h.records[key], same)
		switch n := h.noticed[key]; {
		case n > 1:
			return fmt.Sprintf("got %d calls of changed for %s in one call, want 1", n, keyText(key))
		case changed && n == 0:
			return fmt.Sprintf("got no call of changed for %s, which changed from %q to %q", keyText(key), text(h.records[key]), text(now[key]))
		case exact && !changed && n == 1:
			return fmt.Sprintf("got a call of changed for %s, which is unchanged: %q", keyText(key), text(now[key]))
		}
	}
	return ""
}

func keysOf(a, b map[ServicePortName][]*Endpoint, c map[ServicePortName]int) []ServicePortName {
	all := map[ServicePortName]bool{}
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	for k := range c {
		all[k] = true
	}
	var out []ServicePortName
	for k := range all {
		out = append(out, k)
	}
	return out
}

func (h *history) checkEndpoints() string {
	if got, want := len(h.cache.ports), len(h.records); got != want {
		return fmt.Sprintf("got %d ports, want %d", got, want)
	}
	for key, records := range h.records {
		got := h.cache.Endpoints(key)
		if diff := cmp.Diff(text(published(records)), text(got)); diff != "" {
			return fmt.Sprintf("endpoints of %s (-want +got):\n%s", keyText(key), diff)
		}
		h.returned = append(h.returned, returnedList{got, text(got)})
	}
	return ""
}

func (h *history) checkReturned() string {
	for _, r := range h.returned {
		if diff := cmp.Diff(r.copied, text(r.list)); diff != "" {
			return "a returned list has changed (-then +now):\n" + diff
		}
	}
	return ""
}

func (h *history) pick(from ...string) string { return objects.OneOf(h.Rand, from...) }

func (h *history) view() View {
	return View{NodeName: h.pick("", "here", "there"), Zone: h.pick("", "a", "b")}
}

// oracle keeps the API objects and computes everything from them in each call.
type oracle struct {
	view    View
	objects map[types.NamespacedName]*discoveryv1.EndpointSlice
}

func newOracle(view View) *oracle {
	return &oracle{view: view, objects: map[types.NamespacedName]*discoveryv1.EndpointSlice{}}
}

func (o *oracle) update(s *discoveryv1.EndpointSlice) {
	o.objects[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s.DeepCopy()
}

// records returns all usable records of all ports, in order.
func (o *oracle) records() map[ServicePortName][]*Endpoint {
	out := map[ServicePortName][]*Endpoint{}
	for _, s := range o.objects {
		service := s.Labels[discoveryv1.LabelServiceName]
		family := v1.IPFamily(s.AddressType)
		if s.Name == "" || s.Namespace == "" || service == "" || family != v1.IPv4Protocol && family != v1.IPv6Protocol {
			continue
		}
		for _, n := range usablePorts(s) {
			key := ServicePortName{NamespacedName: types.NamespacedName{Namespace: s.Namespace, Name: service}, Port: n.name, Protocol: n.protocol, Family: family}
			for i := range s.Endpoints {
				if e, ok := o.endpointOf(&s.Endpoints[i], family, n.number); ok {
					out[key] = append(out[key], &e)
				}
			}
		}
	}
	for _, list := range out {
		sortEndpoints(list)
	}
	return out
}

// usablePorts returns the valid ports of a slice, each once.
func usablePorts(s *discoveryv1.EndpointSlice) []portNumber {
	var out []portNumber
	for _, p := range s.Ports {
		n := portNumber{name: deref(p.Name), protocol: deref(p.Protocol), number: uint16(deref(p.Port))}
		if n.protocol == "" {
			n.protocol = v1.ProtocolTCP
		}
		known := slices.Contains([]v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}, n.protocol)
		if !known || n.number == 0 || int32(n.number) != deref(p.Port) || slices.Contains(out, n) {
			continue
		}
		out = append(out, n)
	}
	return out
}

func (o *oracle) endpointOf(e *discoveryv1.Endpoint, family v1.IPFamily, port uint16) (Endpoint, bool) {
	if len(e.Addresses) == 0 {
		return Endpoint{}, false
	}
	addr, err := parseAddr(e.Addresses[0], family)
	if err != nil {
		return Endpoint{}, false
	}
	out := Endpoint{Addr: netip.AddrPortFrom(addr, port), NodeName: deref(e.NodeName), Ready: true, Serving: true}
	if c := e.Conditions.Ready; c != nil {
		out.Ready = *c
	}
	if c := e.Conditions.Serving; c != nil {
		out.Serving = *c
	}
	out.Terminating = deref(e.Conditions.Terminating)
	out.Local = out.NodeName != "" && out.NodeName == o.view.NodeName
	if e.Hints == nil {
		return out, true
	}
	var zones, nodes []string
	for _, z := range e.Hints.ForZones {
		zones = append(zones, z.Name)
	}
	for _, n := range e.Hints.ForNodes {
		nodes = append(nodes, n.Name)
	}
	out.ZoneHint, out.NodeHint = hintFor(zones, o.view.Zone), hintFor(nodes, o.view.NodeName)
	return out, true
}

func hintFor(names []string, here string) Hint {
	switch {
	case len(names) == 0:
		return HintNone
	case here != "" && slices.Contains(names, here):
		return HintHere
	}
	return HintElsewhere
}

// published returns the first record of each address.
func published(records []*Endpoint) []*Endpoint {
	return slices.CompactFunc(slices.Clone(records), func(a, b *Endpoint) bool { return a.Addr == b.Addr })
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

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
