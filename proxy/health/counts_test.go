package health

import (
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// tally is what counts must have of a Service.
type tally struct {
	Ports      map[uint16]bool // any of them is right
	IPv4, IPv6 int
}

// recount counts what a dataplane holds from the start.
func recount(held map[proxy.ServicePortName]*proxy.ServicePort) map[types.NamespacedName]tally {
	type distinct struct {
		name types.NamespacedName
		addr netip.Addr
	}
	out := map[types.NamespacedName]tally{}
	families := map[types.NamespacedName]map[v1.IPFamily]bool{}
	seen := map[distinct]bool{}
	for name, p := range held {
		if p.HealthCheckNodePort == 0 {
			continue
		}
		service := name.NamespacedName
		x, ok := out[service]
		if !ok {
			x.Ports = map[uint16]bool{}
			families[service] = map[v1.IPFamily]bool{}
		}
		x.Ports[p.HealthCheckNodePort] = true
		families[service][name.Family] = true
		for _, e := range p.Local {
			d := distinct{service, e.Addr.Addr()}
			switch {
			case !e.Local || !e.Ready || seen[d]:
			case name.Family == v1.IPv4Protocol:
				x.IPv4++
			default:
				x.IPv6++
			}
			seen[d] = seen[d] || e.Local && e.Ready
		}
		out[service] = x
	}
	for service, x := range out {
		if !families[service][v1.IPv4Protocol] {
			x.IPv4 = x.IPv6
		}
		if !families[service][v1.IPv6Protocol] {
			x.IPv6 = x.IPv4
		}
		out[service] = x
	}
	return out
}

func randomPort(r *rand.Rand) *proxy.ServicePort {
	p := &proxy.ServicePort{Name: portName(string(rune('a'+r.IntN(6))), v1.IPv4Protocol)}
	p.Name.Port = string(rune('p' + r.IntN(3)))
	prefix := [4]byte{10}
	if r.IntN(2) == 0 {
		p.Name.Family = v1.IPv6Protocol
	}
	if r.IntN(5) > 0 {
		p.HealthCheckNodePort = uint16(30000 + r.IntN(3))
	}
	for i := range r.IntN(5) {
		prefix[3] = byte(i)
		a := netip.AddrFrom4(prefix)
		if p.Name.Family == v1.IPv6Protocol {
			a = netip.AddrFrom16(a.As16())
		}
		p.Local = append(p.Local, &endpoints.Endpoint{
			Addr: netip.AddrPortFrom(a, uint16(8080+r.IntN(2))), Local: r.IntN(4) > 0, Ready: r.IntN(4) > 0,
		})
	}
	return p
}

// After random syncs, the counts that follow changes equal those of a recount.
func TestCountsEqualARecount(t *testing.T) {
	rnd := testenv.Random(t)
	for range 20 {
		s, r := watching(t, Options{})
		wanted := map[proxy.ServicePortName]*proxy.ServicePort{}
		held := map[proxy.ServicePortName]*proxy.ServicePort{}
		for range 60 {
			for range 1 + rnd.IntN(4) {
				p := randomPort(rnd)
				wanted[p.Name] = p
				if rnd.IntN(3) == 0 {
					delete(wanted, p.Name)
				}
			}
			account := randomSync(rnd, wanted, held)
			r.Synced(account)
			checkCounts(t, s, held)
			if t.Failed() {
				return
			}
		}
	}
}

// randomSync returns the Sync of an Apply that succeeds, fails, or refuses some ports, and
// changes held as it changes the dataplane.
func randomSync(r *rand.Rand, wanted, held map[proxy.ServicePortName]*proxy.ServicePort) proxy.Sync {
	account := proxy.Sync{Snapshot: proxy.NewSnapshot(atLoopback(), slices.Collect(maps.Values(wanted))...), Full: r.IntN(3) == 0}
	if r.IntN(4) == 0 {
		account.Err = io.ErrUnexpectedEOF
		return account
	}
	failed := proxy.PortErrors{}
	if account.Full {
		clear(held)
	}
	all := map[proxy.ServicePortName]bool{}
	for name := range held {
		all[name] = true
	}
	for name := range wanted {
		all[name] = true
	}
	for name := range all {
		switch p := wanted[name]; {
		case r.IntN(6) == 0:
			failed[name] = io.ErrNoProgress
		case p == nil:
			delete(held, name)
		default:
			held[name] = p
		}
	}
	if len(failed) > 0 {
		account.Err, account.Refused = failed, failed
	}
	account.Applied = proxy.NewSnapshot(atLoopback(), slices.Collect(maps.Values(held))...)
	return account
}

func checkCounts(t *testing.T, s *Server, held map[proxy.ServicePortName]*proxy.ServicePort) {
	t.Helper()
	want := recount(held)
	got := map[types.NamespacedName]tally{}
	for name, svc := range s.counts {
		ports := s.counts.portsOf(name)
		x := tally{Ports: want[name].Ports, IPv4: readyLocal(ports, v1.IPv4Protocol), IPv6: readyLocal(ports, v1.IPv6Protocol)}
		if !x.Ports[svc.port] {
			t.Errorf("%s: got port %d, want one of %v", name, svc.port, x.Ports)
		}
		got[name] = x
	}
	testenv.Same(t, want, got, "counts")
}

// Health check node ports follow what the dataplane has, also while removing stale flows fails:
// then a load balancer must not send clients to a node that has no endpoint for them any more.
func TestCountsFollowThoughFlowsFail(t *testing.T) {
	s, r := watching(t, Options{})
	check := func(when string, status int, weight string) {
		t.Helper()
		w := httptest.NewRecorder()
		s.serviceHandler(key("a")).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		if got := w.Header().Get("X-Load-Balancing-Endpoint-Weight"); w.Code != status || got != weight {
			t.Errorf("%s: got status %d and weight %q, want %d and %q", when, w.Code, got, status, weight)
		}
	}
	flowsFail := func(ports ...*proxy.ServicePort) {
		x := proxy.NewSnapshot(atLoopback(), ports...)
		r.Synced(proxy.Sync{Snapshot: x, Applied: x, Start: time.Now(), Err: io.ErrNoProgress})
	}
	flowsFail(servicePort("a", v1.IPv4Protocol, 30001, "10.0.0.1", "10.0.0.2"))
	check("a first Apply", http.StatusOK, "2")
	flowsFail(servicePort("a", v1.IPv4Protocol, 30001))
	check("no endpoint is left", http.StatusServiceUnavailable, "0")
	r.Synced(proxy.Sync{Snapshot: proxy.NewSnapshot(atLoopback()), Start: time.Now(), Err: proxy.ErrDataplaneLost})
	check("the dataplane is lost", http.StatusServiceUnavailable, "0")
}

// A request does not keep the Runner waiting while it counts the endpoints of a large Service.
func TestRequestsDoNotDelayTheRunner(t *testing.T) {
	s, r := watching(t, Options{})
	p := servicePort("a", v1.IPv4Protocol, 30001)
	for i := range 300_000 {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		p.Local = append(p.Local, &endpoints.Endpoint{Addr: netip.AddrPortFrom(a, 80), Local: true, Ready: true})
	}
	applied(r, p)
	var longest, took time.Duration
	for range 20 { // The scheduler may delay any of them.
		longest, took = waitDuringRequest(s, r)
		if longest < took/4 {
			return
		}
	}
	t.Errorf("Verified took %v during a request of %v, want less than a quarter", longest, took)
}

// waitDuringRequest returns how long the longest call of the Observer takes during a request, and how long that takes.
func waitDuringRequest(s *Server, r proxy.Observer) (longest, took time.Duration) {
	end, waited := make(chan struct{}), make(chan time.Duration, 1)
	started := make(chan struct{})
	go func() {
		close(started)
		longest := time.Duration(0)
		for {
			select {
			case <-end:
				waited <- longest
				return
			default:
				begin := time.Now()
				r.Verified(proxy.Snapshot{})
				longest = max(longest, time.Since(begin))
			}
		}
	}()
	<-started
	begin := time.Now()
	s.serviceHandler(key("a")).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	took = time.Since(begin)
	close(end)
	return <-waited, took
}
