package storm

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// someHistory returns the first steps of a history.
func someHistory(seed uint64, n int) (steps []step) {
	for one := range history(rand.New(rand.NewPCG(seed, 0)), &options{backend: "nftables"}) {
		if steps = append(steps, one); len(steps) == n {
			break
		}
	}
	return steps
}

// TestHistory: the same seed gives the same history, and a file keeps all of it.
func TestHistory(t *testing.T) {
	const steps = 500
	one := someHistory(1, steps)
	exact := cmp.Options{cmp.AllowUnexported(step{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
	if diff := cmp.Diff(one, someHistory(1, steps), exact); diff != "" {
		t.Errorf("the same seed again (-first +second):\n%s", diff)
	}
	if cmp.Equal(one, someHistory(2, steps), exact) {
		t.Error("seeds 1 and 2 give the same history")
	}
	read, err := readHistory(strings.NewReader(historyText("nftables", one)))
	testenv.NoError(t, err)
	if diff := cmp.Diff(one, read, exact); diff != "" {
		t.Errorf("written and read (-want +got):\n%s", diff)
	}
	for name, f := range faults() {
		isThere := slices.ContainsFunc(one, func(s step) bool { return s.Do == name })
		if isThere != f.fits(&options{backend: "nftables"}) {
			t.Errorf("%d steps contain a fault %q: got %t, want %t", steps, name, isThere, !isThere)
		}
	}
}

// source returns an address and port that a flight may come from.
func source(f flight) netip.AddrPort {
	if f.from == cluster.Node {
		return netip.AddrPortFrom(nodeAddrs()[0], 1)
	}
	return netip.AddrPortFrom(cluster.Nth(f.crowd(), 1), 1)
}

// answer returns the reply of a server.
func answer(own, client netip.AddrPort) lab.Reply {
	return lab.Reply{Outcome: lab.Answered, Answer: lab.Answer{Own: own, Client: client}}
}

// TestJudge checks which connections the judge reports as violations, and of which
// invariant.
func TestJudge(t *testing.T) {
	o := oracleOf(false)
	m := newModel(o)
	m.addAgent("")
	m.set(t, &change{Services: map[int]*cluster.Sample{0: {Type: "LoadBalancer", Ranges: sourceRanges()[0], Endpoints: crowds(0, 1, 0)}}, Node: new(0)})
	m.recordEvent("", event{Applied: 1})
	snapshot, applied, _, _ := m.now()
	candidates := flights(snapshot)
	find := func(from cluster.Name, kind proxy.FrontendKind) flight {
		for _, f := range candidates {
			v := proxy.Route(snapshot, f.packet(o, source(f)))
			if f.from == from && v.Frontend.Kind == kind && f.protocol == "TCP" {
				return f
			}
		}
		t.Fatalf("no flight from client %s to a frontend of kind %s", from, kind)
		return flight{}
	}
	allowed, denied := find(cluster.Outside, proxy.LoadBalancer), find(cluster.Stranger, proxy.LoadBalancer)
	right := func(f flight) *outcome {
		v := proxy.Route(snapshot, allowed.packet(o, source(allowed)))
		return &outcome{source: source(f), Reply: answer(v.Endpoints[0].Addr, netip.AddrPortFrom(nodeAddrs()[0], 1))}
	}
	refused := &outcome{source: source(allowed), Reply: lab.Reply{Outcome: lab.Reset}}
	leaked := &outcome{source: source(denied), Reply: answer(denied.to, source(denied))}
	for _, c := range []struct {
		name  string
		f     flight
		got   *outcome
		fault func(*judge)
		want  string
	}{
		{"served", allowed, right(allowed), nil, ""},
		{"refused", allowed, refused, nil, invariantWhole},
		{"refused in a fault", allowed, refused, func(j *judge) { j.damage(false) }, ""},
		{"refused after a fault", allowed, refused, func(j *judge) { j.damage(false); j.repaired() }, invariantWhole},
		{"denied", denied, &outcome{source: source(denied), Reply: lab.Reply{Outcome: lab.Reset}}, nil, ""},
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
		testenv.Same(t, c.want, got, "%s", c.name)
	}
}

// TestJudgeDuringChanges: only during a change, and only with some backends, connections to a
// Service that gets session affinity may fail, and those to a new endpoint may be masqueraded as
// before.
func TestJudgeDuringChanges(t *testing.T) {
	o := oracleOf(false)
	m := newModel(o)
	m.addAgent("")
	one := cluster.Sample{Type: "LoadBalancer", Endpoints: crowds(0, 1, 0)}
	for _, s := range []cluster.Sample{one, {Type: "LoadBalancer", Endpoints: crowds(1, 1, 0), External: "Local", Affinity: 10}} {
		m.set(t, &change{Services: map[int]*cluster.Sample{0: &s}, Node: new(0)})
	}
	snapshot, _, _, _ := m.now()
	i := slices.IndexFunc(flights(snapshot), func(f flight) bool { return f.from == cluster.Outside && f.to.Port() == cluster.FirstNodePort })
	f := flights(snapshot)[i]
	masqueraded := answer(proxy.Route(snapshot, f.packet(o, source(f))).Endpoints[0].Addr, netip.AddrPortFrom(nodeAddrs()[0], 1))
	failed, mixed := outcome{source: source(f), Reply: lab.Reply{Outcome: lab.Failed, Err: syscall.EPERM}}, outcome{source: source(f), Reply: masqueraded}
	for _, c := range []struct {
		mixing, stepwise bool
		applied          int
		got              outcome
		times, want      int
	}{
		{false, true, 1, failed, 9, 0}, {true, true, 2, failed, 1, 1}, {false, false, 1, failed, 1, 1},
		{true, false, 1, failed, mostFailedInChange, 0}, {true, false, 1, failed, mostFailedInChange + 1, 1},
		{true, false, 1, mixed, 9, 0}, {true, true, 2, mixed, 1, 1}, {false, true, 1, mixed, 1, 1},
	} {
		j := newJudge(m, time.Minute)
		j.mixing, j.stepwise = c.mixing, c.stepwise
		for range c.times {
			j.sample(f, &c.got, time.Now(), c.applied)
		}
		if n := len(j.violated()); n != c.want {
			t.Errorf("%v %d times, with message %d applied, mixing %t, stepwise %t: got %d violations, want %d", &c.got, c.times, c.applied, c.mixing, c.stepwise, n, c.want)
		}
	}
}

// A client that chose its endpoint at an external address may keep it at the ClusterIP while the change
// is applied that removes the endpoint and ends a policy of the ClusterIP, but not without affinity
// and not after the change.
func TestAffinityDuringChange(t *testing.T) {
	for _, affinity := range []int32{0, 18} {
		j := newJudge(newModel(oracleOf(false)), 0)
		j.mixing = true
		old := &cluster.Sample{Type: v1.ServiceTypeLoadBalancer, Internal: "Local", Affinity: affinity, ExternalIP: true, Endpoints: crowds(1, 16, 9)}
		next := &cluster.Sample{Type: v1.ServiceTypeLoadBalancer, Affinity: affinity, ExternalIP: true, Endpoints: crowds(1, 1, 0)}
		for _, s := range []*cluster.Sample{old, next} {
			j.model.set(t, &change{Services: map[int]*cluster.Sample{8: s}})
		}
		f := flight{from: cluster.Node, to: netip.MustParseAddrPort("[fd00:96::108]:80"), protocol: v1.ProtocolTCP}
		node := netip.MustParseAddrPort("[fd00:18::2]:40000")
		got := &outcome{source: node, Reply: answer(netip.MustParseAddrPort("[fd00:10:5::4009]:8080"), node)}
		for applied, want := range map[int]bool{1: affinity > 0, 2: false} {
			v := j.verdictsOf(f, got, j.model.since(applied))
			if allowed := j.allows(f, got, &v, applied); allowed != want {
				t.Errorf("affinity of %d s, message %d is applied: allowed: got %t, want %t", affinity, applied, allowed, want)
			}
		}
	}
}

// TestProgramsEnd: a program that does not end by itself is ended.
func TestProgramsEnd(t *testing.T) {
	t.Parallel()
	s := &storm{t: t, world: &world{node: netnstest.NewNS(t)}}
	const limit = 100 * time.Millisecond
	begin := time.Now()
	_, err := s.runWithin(limit, "", "sleep", "60")
	if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > time.Minute/2 {
		t.Errorf("sleep 60 on the node: got %v after %v, want an end after %v", err, took, limit)
	}
}

// A history with a kind of step that does not exist is not played.
func TestUnknownSteps(t *testing.T) {
	_, err := readHistory(strings.NewReader("# backend: nftables\n{\"do\":\"calm\"}\n{\"do\":\"tampr\"}\n"))
	if want := `line 3: unknown kind of step "tampr", want one of ["add" "calm"`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want %s", err, want)
	}
}
