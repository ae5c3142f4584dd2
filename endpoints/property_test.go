package endpoints

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestCacheAgainstOracle(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const histories, steps = 30, 150
	for i := range histories {
		h := newHistory(rand.New(rand.NewPCG(seed, uint64(i))))
		for step := range steps {
			if problem := h.step(); problem != "" {
				t.Fatalf("seed %d, history %d, step %d: %s", seed, i, step, problem)
			}
		}
		checkCache(t, h.cache)
		if problem := h.checkReturned(); problem != "" {
			t.Fatalf("seed %d, history %d: %s", seed, i, problem)
		}
		for name := range h.oracle.objects {
			h.cache.Delete(name)
		}
		checkEmpty(t, h.cache)
	}
}

// history makes the same random calls of a Cache and of the oracle.
type history struct {
	r       *rand.Rand
	cache   *Cache
	oracle  *oracle
	noticed map[PortKey]int
	// records are those of the oracle before the step.
	records map[PortKey][]*Endpoint
	// returned are lists that the Cache returned, with copies from that time.
	returned []returnedList
}

type returnedList struct {
	list   []*Endpoint
	copied []string
}

func newHistory(r *rand.Rand) *history {
	h := &history{r: r, noticed: map[PortKey]int{}}
	view := h.view()
	h.oracle = newOracle(view)
	h.cache = NewCache(view, func(k PortKey) { h.noticed[k]++ })
	return h
}

// step makes a random call and checks its effects. It returns a failure, or an empty text.
func (h *history) step() string {
	clear(h.noticed)
	exact := true
	switch h.r.IntN(10) {
	case 0:
		view := h.view()
		h.oracle.view = view
		h.cache.SetView(view)
		// The order of records of several slices may change.
		exact = false
	case 1, 2:
		name := sliceName(h.pick("a", "b", "c", "d", "e", "f", "unknown"))
		delete(h.oracle.objects, name)
		h.cache.Delete(name)
	default:
		s := h.slice()
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
	if h.r.IntN(3) == 0 {
		return h.checkEndpoints()
	}
	return ""
}

func (h *history) checkNotices(now map[PortKey][]*Endpoint, exact bool) string {
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

func keysOf(a, b map[PortKey][]*Endpoint, c map[PortKey]int) []PortKey {
	all := map[PortKey]bool{}
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	for k := range c {
		all[k] = true
	}
	var out []PortKey
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

func (h *history) pick(from ...string) string { return from[h.r.IntN(len(from))] }

func (h *history) chance(percent int) bool { return h.r.IntN(100) < percent }

func (h *history) view() View {
	return View{NodeName: h.pick("", "n1", "n2"), Zone: h.pick("", "z1", "z2")}
}

// slice makes a slice of few names and addresses, so that slices overlap.
func (h *history) slice() *discoveryv1.EndpointSlice {
	s := apiSlice(h.pick("a", "b", "c", "d", "e", "f"), h.pick("web", "web", "web", "app", ""))
	v6 := h.chance(10)
	if v6 {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	if h.chance(2) {
		s.AddressType = discoveryv1.AddressTypeFQDN
	}
	s.Ports = nil
	for h.chance(60) && len(s.Ports) < 4 {
		s.Ports = append(s.Ports, h.port())
	}
	for range h.r.IntN(6) {
		s.Endpoints = append(s.Endpoints, h.endpoint(v6))
	}
	return s
}

func (h *history) port() discoveryv1.EndpointPort {
	p := apiPort(h.pick("http", "http", "dns"), v1.Protocol(h.pick("TCP", "TCP", "UDP")), int32(80+h.r.IntN(2)))
	switch h.r.IntN(20) {
	case 0:
		p.Name = nil
	case 1:
		p.Port = nil
	case 2:
		p.Protocol = nil
	case 3:
		p.Protocol = new(v1.Protocol("FTP"))
	case 4:
		p.Port = new(int32(70000))
	}
	return p
}

func (h *history) endpoint(v6 bool) discoveryv1.Endpoint {
	var e discoveryv1.Endpoint
	switch {
	case h.chance(3):
		e.Addresses = []string{h.pick("", "nonsense", "127.0.0.1", "fe80::1", "10.0.0.1%eth0")}
	case h.chance(2):
	case v6:
		e.Addresses = []string{h.pick("2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:DB8:0::3")}
	default:
		e.Addresses = []string{h.pick("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.10", "010.0.0.1"), "10.9.9.9"}
	}
	for _, c := range []**bool{&e.Conditions.Ready, &e.Conditions.Serving, &e.Conditions.Terminating} {
		if h.chance(20) {
			*c = new(h.chance(50))
		}
	}
	if h.chance(70) {
		e.NodeName = new(h.pick("n1", "n2", "n3", ""))
	}
	for h.chance(25) {
		hints := hintsOf(&e)
		hints.ForZones = append(hints.ForZones, discoveryv1.ForZone{Name: h.pick("z1", "z2", "z3", "")})
	}
	for h.chance(15) {
		hints := hintsOf(&e)
		hints.ForNodes = append(hints.ForNodes, discoveryv1.ForNode{Name: h.pick("n1", "n2", "n3", "")})
	}
	return e
}
