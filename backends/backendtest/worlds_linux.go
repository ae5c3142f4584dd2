package backendtest

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
)

// EverythingVariable names the environment variable that, if set, has [Run] hold backends
// to everything in all of [Config.Worlds]. Otherwise it runs what depends on the world most.
const EverythingVariable = "VIPKIT_EVERYTHING"

// testWorlds holds the backend to what [proxy.Route] says in other worlds.
func (c *Config) testWorlds(t *testing.T) {
	if len(c.Worlds) == 0 {
		return
	}
	t.Run("Worlds", func(t *testing.T) {
		for _, name := range c.Worlds {
			w, known := findWorld(name)
			if !known {
				t.Fatalf("there is no world %q; there are %q", name, Worlds())
			}
			if c.lacks(w.what) || w.bridge != nil && c.lacks(Bridges) {
				continue
			}
			in := *c
			in.world = w
			t.Run(string(name), in.testWorld)
		}
	})
}

func (c *Config) testWorld(t *testing.T) {
	c.run(t, "Scenarios", c.worldScenarios)
	c.testPackets(t)
	c.run(t, "Node", c.testNode)
	if c.isEverything() && !c.world.single && !c.loses() {
		c.testRest(t)
	}
}

// testNode has the backend look at the node: it names the settings that make it lose
// packets in this world, and no others.
func (c *Config) testNode(t *testing.T) {
	s := c.setUp(t)
	var want, got []string
	if c.lacks(UnfilteredBridges) && c.world.bridge != nil && !c.world.bridge.filtered {
		want = append(want, "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables")
	}
	if c.lacks(HairpinOff) && c.world.bridge != nil && c.world.bridge.filtered && !c.world.bridge.hairpin {
		want = append(want, "hairpin_mode of "+bridgeName)
	}
	s.apply(t, resolve(t, s.tracker(nodeOptions())))
	if checker, can := s.backend.(backends.NodeChecker); can {
		s.onNode(t, func() error {
			for _, p := range checker.CheckNode(s.applied) {
				got = append(got, p.Field)
			}
			return nil
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings of the node that break Services (-want +got):\n%s", diff)
	}
}

func (c *Config) isEverything() bool {
	return c.world.name == "" || os.Getenv(EverythingVariable) != ""
}

// loses reports whether packets to good endpoints are lost in this world, which only
// tests know that ask [proxy.Route].
func (c *Config) loses() bool {
	places := []place{atClient, atLocal, atLocal2}
	return slices.ContainsFunc(places, func(from place) bool {
		return slices.ContainsFunc(places, func(to place) bool { return c.lacks(c.world.needs(from, to, from == to)) })
	})
}

// worldScenarios sends the packets of all scenarios, and holds them to [proxy.Route]:
// what the scenarios themselves demand is written for routed pods.
func (c *Config) worldScenarios(t *testing.T) {
	s := c.setUp(t)
	for _, group := range c.scenarioGroups(t) {
		snapshot := s.applyScenarios(t, group)
		var flights []flight
		for _, sc := range group {
			flights = append(flights, sc.flights()...)
		}
		flights = append(flights, s.nodePortFlights(30001, 30021, 30031, firstHostPort)...)
		s.hold(t, snapshot, flights)
	}
}
