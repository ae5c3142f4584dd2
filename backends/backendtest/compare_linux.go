package backendtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Compare applies the same random changes with several backends, each on the node of a
// testbed of its own, and sends the same packets in all testbeds. If the outcome of a packet
// is not the one of [proxy.Route], it reports the outcomes with all backends. It makes no
// Services that one of the backends cannot serve because it lacks a capability; outcomes
// that other lacks allow are allowed for that backend only.
//
// Each round has a node with options of its own and some Services, which change a few
// times. The seed is in the log of the test, as with [Run].
func Compare(t *testing.T, worlds int, backends map[string]Config) {
	r := testenv.Random(t)
	c := &comparison{random: r, stages: map[string]*stage{}}
	for _, name := range slices.Sorted(maps.Keys(backends)) {
		config := backends[name]
		c.names = append(c.names, name)
		c.lacks = append(c.lacks, config.Lacks...)
		config.course = &course{}
		c.stages[name] = config.setUp(t)
	}
	for world := range worlds {
		options := c.options()
		h := newHistory(r, proxy.NewServiceChangeTracker(options), worldSamples, slices.Contains(c.lacks, Affinity))
		for change := range worldChanges {
			c.step(t, h, r.IntN(4) == 0)
			if t.Failed() {
				t.Fatalf("in round %d of %d, after change %d, with %+v", world+1, worlds, change+1, options)
			}
		}
	}
	t.Logf("%d packets in %d rounds, each sent on %d nodes", c.sent, worlds, len(c.names))
}

// worldSamples is the number of Services in a round of a comparison, worldChanges the number
// of changes.
const worldSamples, worldChanges = 5, 3

// comparison is several backends with the same changes and packets.
type comparison struct {
	random *rand.Rand
	names  []string
	stages map[string]*stage
	// lacks are the capabilities that one of the backends does not have.
	lacks []Capability
	sent  int
}

// options returns random options of a node.
func (c *comparison) options() proxy.TrackerOptions {
	r, o := c.random, nodeOptions()
	o.MasqueradeAll = r.IntN(4) == 0
	o.LocalFallback = pick(r, endpoints.FallbackTerminating, endpoints.FallbackNone, endpoints.FallbackCluster)
	o.NodePortAddresses = pick(r, proxy.NodePortAddresses{}, proxy.NodePortAddresses{All: true},
		proxy.NodePortAddresses{Prefixes: prefixes("172.18.0.0/24", "fd00:18::/64")},
		proxy.NodePortAddresses{Prefixes: prefixes("172.18.1.2/32", "127.0.0.0/8")})
	o.ServiceCIDRs = pick(r, nil, prefixes("10.96.0.0/16", "fd00:96::/112"), prefixes("fd00:96::/112"))
	traffic := pick(r, o.LocalTraffic, o.LocalTraffic, proxy.LocalTraffic{},
		proxy.LocalTraffic{Interface: "cali-client"}, proxy.LocalTraffic{InterfacePrefix: "cali-"})
	if traffic.Interface+traffic.InterfacePrefix == "" || !slices.Contains(c.lacks, PodInterfaces) {
		o.LocalTraffic = traffic
	}
	return o
}

// step makes a change, applies it with all backends and sends packets.
func (c *comparison) step(t *testing.T, h *history, restart bool) {
	t.Helper()
	next := h.next(t)
	for _, name := range c.names {
		if restart {
			c.stages[name].restart(t)
		}
		c.stages[name].apply(t, next)
	}
	var flights []flight
	for i := range h.samples {
		flights = append(flights, h.samples[i].randomFlights(c.random)...)
		flights = append(flights, h.samples[i].otherFlights(c.random)...)
	}
	c.sent += len(flights)
	wrong := c.send(t, next, flights)
	for _, f := range flights {
		if text := c.differences(f, wrong); text != "" {
			t.Error(text)
		}
	}
}

// send sends flights on all nodes at the same time, and returns the wrong ones by the name
// of the backend.
func (c *comparison) send(t *testing.T, s proxy.Snapshot, flights []flight) map[string][]wrongFlight {
	t.Helper()
	all, errs := make([][]wrongFlight, len(c.names)), make([]error, len(c.names))
	var wg sync.WaitGroup
	for i, name := range c.names {
		wg.Go(func() { all[i], errs[i] = c.stages[name].checkOracle(t.Context(), s, flights) })
	}
	wg.Wait()
	wrong := map[string][]wrongFlight{}
	for i, name := range c.names {
		if errs[i] != nil {
			t.Fatalf("%s: %v", name, errs[i])
		}
		wrong[name] = all[i]
	}
	return wrong
}

// differences describes the outcome of a flight with each backend, if it is wrong with one
// of them.
func (c *comparison) differences(f flight, wrong map[string][]wrongFlight) string {
	message, outcomes := "", make([]string, len(c.names))
	for i, name := range c.names {
		outcomes[i] = "as wanted"
		for _, w := range wrong[name] {
			if w.flight == f {
				outcomes[i], message = "got "+strings.Join(w.got, ", "), w.message
			}
		}
		outcomes[i] = fmt.Sprintf("%s: %s", name, outcomes[i])
	}
	if message == "" {
		return ""
	}
	return message + "\n  " + strings.Join(outcomes, "\n  ")
}

// otherFlights returns a packet to an address or port close to a frontend of a sample.
func (s *sample) otherFlights(r *rand.Rand) []flight {
	at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	to := pick(r,
		at(s.clusterIP(), 81),
		at(s.externalAddr(), 81),
		at(netip.MustParseAddr("10.96.77.77"), samplePort),
		at(netip.MustParseAddr("172.18.0.2"), firstHostPort+hostPorts-1),
		at(netip.MustParseAddr("10.0.0.5"), endpointPort),
		at(s.clusterIP(), 0))
	if r.IntN(2) == 0 {
		to = at(ipv6Of(to.Addr()), to.Port())
	}
	f := flight{from: pick(r, atClient, atNode, atOutside), to: to, protocol: pick(r, v1.ProtocolTCP, v1.ProtocolUDP)}
	if to.Port() == 0 {
		f.protocol = icmp
	}
	return []flight{f}
}
