package backendtest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// testPoison applies service ports that no dataplane can serve, or that are larger than any
// real one: other ports must not be affected.
func (c *Config) testPoison(t *testing.T) {
	for _, p := range []struct {
		name  string
		test  func(*testing.T, *stage)
		needs Capability
	}{
		{"Objects", poisonObjects, ""},
		{"Counts", poisonCounts, ""},
		{"Interface", poisonInterface, PodInterfaces},
	} {
		if c.lacks(p.needs) {
			continue
		}
		c.runBeside(t, "Poison/"+p.name, func(t *testing.T) {
			s := c.setUp(t)
			s.calm()
			p.test(t, s)
		})
	}
}

// healthy returns two Services that work, and packets to check them.
func healthy(t *testing.T) (proxy.Snapshot, []flight) {
	t.Helper()
	var all []cluster.Objects
	var flights []flight
	for number, at := range []cluster.Name{cluster.Local, cluster.Remote} {
		x := exposed(number+1, at)
		all = append(all, x.Objects())
		flights = append(flights, flightsTo(x, clients(onlyTCP(), cluster.Client, cluster.Node, cluster.Outside))...)
	}
	return snapshotOf(t, nodeOptions(), all...), flights
}

// with returns a snapshot with further ports, on another node if that is not nil.
func with(s proxy.Snapshot, node *proxy.Node, more ...*proxy.ServicePort) proxy.Snapshot {
	if node == nil {
		node = s.Node()
	}
	return proxy.NewSnapshot(node, append(slices.Collect(s.All()), more...)...)
}

// poisonObjects: the error names all ports that no dataplane can serve and no others, and the
// dataplane is the same as without them.
func poisonObjects(t *testing.T, s *stage) {
	world, flights := healthy(t)
	unservable := unservables()
	s.apply(t, world)
	want := s.dump(t)
	for _, start := range []proxy.Snapshot{world, {}} {
		if start.IsZero() {
			s.restart(t)
		}
		failed := s.applyFaulty(t, start, with(world, nil, unservable...))
		for _, p := range unservable {
			if failed[p.Name] == nil {
				t.Errorf("from %d ports: error: got none for %s, want one", start.Len(), p.Name)
			}
			delete(failed, p.Name)
		}
		for name, err := range failed {
			t.Errorf("from %d ports: error: got one for %s, want none: %v", start.Len(), name, err)
		}
		if diff := cmp.Diff(want, s.dump(t)); diff != "" {
			t.Errorf("from %d ports: dataplane (-without the faulty ports +with them):\n%s", start.Len(), diff)
		}
		s.checkFlights(t, world, flights)
	}
}

// applyFaulty applies a snapshot with ports that may fail, again from the zero snapshot after
// ErrDataplaneLost, as a [proxy.Runner] does, and returns the errors of ports.
func (s *stage) applyFaulty(t *testing.T, old, next proxy.Snapshot) proxy.PortErrors {
	t.Helper()
	err := s.applyOnce(t, old, next)
	for range 2 {
		if errors.Is(err, proxy.ErrDataplaneLost) {
			err = s.applyOnce(t, proxy.Snapshot{}, next)
		}
	}
	failed, some := errors.AsType[proxy.PortErrors](err)
	if err != nil && (!some || errors.Is(err, proxy.ErrDataplaneLost)) {
		t.Fatalf("Apply: got error %v, want one that names ports", err)
	}
	return failed
}

// poisonCounts: a very large port is programmed or named in the error; other ports work, and
// the dataplane is as before after it is removed.
func poisonCounts(t *testing.T, s *stage) {
	world, flights := healthy(t)
	s.apply(t, world)
	want := s.dump(t)
	many, same := handMade("many-endpoints", 1), handMade("one-endpoint-many-times", 2)
	for i := range 6000 {
		many.Cluster = append(many.Cluster, snapshots.Endpoints(fmt.Sprintf("10.9.%d.%d", i>>8, i&255))...)
		same.Cluster = append(same.Cluster, many.Cluster[0])
	}
	ports := handMade("many-frontends", 3, "10.0.0.5")
	for i := range 1000 {
		f := ports.Frontends[0]
		f.Kind, f.Addr = proxy.ExternalIP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, 250}), uint16(1000+i))
		ports.Frontends = append(ports.Frontends, f)
	}
	for _, p := range []*proxy.ServicePort{many, same, ports} {
		failed := s.applyFaulty(t, world, with(world, nil, p))
		for name, err := range failed {
			if name != p.Name {
				t.Errorf("%s: error: got one for %s, want none: %v", p.Name, name, err)
			}
		}
		t.Logf("%s: %d errors: %.200v", p.Name.Name, len(failed), failed[p.Name])
		s.checkFlights(t, world, flights)
		s.restart(t)
		s.apply(t, world)
		if diff := cmp.Diff(want, s.dump(t)); diff != "" {
			t.Errorf("%s: dataplane after it was removed (-before +after):\n%s", p.Name, diff)
		}
	}
}

// poisonInterface: if LocalTraffic has an interface that does not exist, no client is a pod,
// and everything else works.
func poisonInterface(t *testing.T, s *stage) {
	world, flights := healthy(t)
	for _, traffic := range []proxy.LocalTraffic{{Interface: "nowhere0"}, {InterfacePrefix: "nowhere"}} {
		node := *world.Node()
		node.LocalTraffic = traffic
		elsewhere := with(world, &node)
		s.apply(t, elsewhere)
		s.checkFlights(t, elsewhere, flights)
	}
}
