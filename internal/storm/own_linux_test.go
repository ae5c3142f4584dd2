package storm

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/proxy"
)

// someHistory gives the first steps of a history.
func someHistory(seed uint64, n int) (steps []step) {
	for one := range history(rand.New(rand.NewPCG(seed, 0)), &options{backend: "nftables"}) {
		if steps = append(steps, one); len(steps) == n {
			break
		}
	}
	return steps
}

// TestHistory: a seed repeats a history, and a file has all of it.
func TestHistory(t *testing.T) {
	const steps = 500
	one := someHistory(1, steps)
	if diff := cmp.Diff(one, someHistory(1, steps), cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("the same seed again (-first +second):\n%s", diff)
	}
	if cmp.Equal(one, someHistory(2, steps), cmp.AllowUnexported(step{})) {
		t.Error("two seeds give the same history")
	}
	text, err := historyText("nftables", one)
	if err != nil {
		t.Fatal(err)
	}
	read, err := readHistory(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(one, read, cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("written and read (-want +got):\n%s", diff)
	}
	for name, f := range faults() {
		isThere := slices.ContainsFunc(one, func(s step) bool { return s.Do == name })
		if isThere != f.fits(&options{backend: "nftables"}) {
			t.Errorf("in %d steps, is there a fault %q: %t", steps, name, isThere)
		}
	}
}

// source gives where a flight may come from.
func source(f flight) netip.AddrPort {
	leaf, prefix := f.from.leaf()
	if leaf == "" {
		return netip.AddrPortFrom(nodeAddrs()[0], 1)
	}
	return netip.AddrPortFrom(nth(ofFamily(leaf, f.family(), prefix), 1), 1)
}

// TestJudge shows the judge connections, and wants to hear which are held against whom.
func TestJudge(t *testing.T) {
	m := newModel()
	m.joins("")
	m.set(t, &change{Services: map[int]*spec{0: {Type: "LoadBalancer", Local: 1, Ranges: 1}}, Node: new(0)})
	m.heard("", event{Applied: 1})
	snapshot, applied, _, _ := m.now()
	ways := flights(snapshot)
	way := func(from client, kind proxy.FrontendKind) flight {
		for _, f := range ways {
			v := proxy.Route(snapshot, f.packet(source(f)))
			if f.from == from && v.Frontend.Kind == kind && f.protocol == "TCP" {
				return f
			}
		}
		t.Fatalf("no way from %s to a %s", from, kind)
		return flight{}
	}
	allowed, denied := way(clientOutside, proxy.LoadBalancer), way(clientStranger, proxy.LoadBalancer)
	right := func(f flight) *fate {
		v := proxy.Route(snapshot, allowed.packet(source(allowed)))
		return &fate{source: source(f), answer: answer{own: v.Endpoints[0].Addr, client: netip.AddrPortFrom(nodeAddrs()[0], 1)}}
	}
	refused := &fate{source: source(allowed), err: syscall.ECONNREFUSED}
	leaked := &fate{source: source(denied), answer: answer{own: denied.to, client: source(denied)}}
	for _, c := range []struct {
		name  string
		f     flight
		got   *fate
		fault func(*judge)
		want  string
	}{
		{"served", allowed, right(allowed), nil, ""},
		{"refused", allowed, refused, nil, invariantWhole},
		{"refused in a fault", allowed, refused, func(j *judge) { j.damage(false) }, ""},
		{"refused after a fault", allowed, refused, func(j *judge) { j.damage(false); j.mended() }, invariantWhole},
		{"denied", denied, &fate{source: source(denied), err: syscall.ECONNREFUSED}, nil, ""},
		{"not denied", denied, right(denied), nil, invariantDenied},
		{"not denied in a fault that closes", denied, right(denied), func(j *judge) { j.damage(false) }, invariantDenied},
		{"not denied in a fault that opens", denied, right(denied), func(j *judge) { j.damage(true) }, ""},
		{"not dropped", denied, leaked, nil, invariantWhole},
	} {
		j := newJudge(m, time.Minute)
		if c.fault != nil {
			c.fault(j)
		}
		j.sample(c.f, c.got, time.Now(), applied)
		got := ""
		for _, v := range j.violated() {
			got = v.invariant
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
