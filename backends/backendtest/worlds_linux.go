package backendtest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/cluster"
)

// everythingVariable names the environment variable that, if 1, makes [Run] run all tests
// in all of [Config.Worlds]. Otherwise it runs those that depend on the world most.
const everythingVariable = "VIPKIT_EVERYTHING"

// testWorlds compares the backend with [proxy.Route] in other worlds.
func (c *Config) testWorlds(t *testing.T) {
	if len(c.Worlds) == 0 {
		return
	}
	c.group(t, "Worlds", func(t *testing.T) {
		for _, name := range c.Worlds {
			w, known := findWorld(name)
			if !known {
				t.Fatalf("unknown world %q, want one of %q", name, Worlds())
			}
			if c.lacks(w.what) || w.bridge != nil && c.lacks(Bridges) {
				continue
			}
			in := *c
			in.world = w
			in.group(t, "Worlds/"+string(name), in.testWorld)
		}
	})
}

func (c *Config) testWorld(t *testing.T) {
	t.Parallel()
	if !c.run(t, "Scenarios", c.worldScenarios) {
		t.Log("Scenarios failed: the other tests of this world are left out")
		return
	}
	c.testPackets(t)
	c.runBeside(t, "Node", c.testNode)
	if c.isEverything() && !c.world.single && !c.loses() {
		c.testConnections(t)
		c.group(t, "Worlds/"+string(c.world.name)+"/Poison", c.testPoison)
		c.group(t, "Worlds/"+string(c.world.name)+"/Laws", c.testLaws)
	}
}

// testNode calls CheckNode of the backend: it must name the settings that make it lose
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
	if check := s.backend.Abilities().CheckNode; check != nil {
		s.onNode(t, func() error {
			for _, p := range check(s.applied) {
				got = append(got, p.Field)
			}
			return nil
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings of the node that break Services (-want +got):\n%s", diff)
	}
}

func (c *Config) isEverything() bool { return c.world.name == "" || c.course.everything }

// loses reports whether packets to endpoints may be lost in this world, which only the tests
// that use checkFlights expect.
func (c *Config) loses() bool {
	pods := []cluster.Name{cluster.Client, cluster.Local, cluster.Local2}
	return slices.ContainsFunc(pods, func(from cluster.Name) bool {
		return slices.ContainsFunc(pods, func(to cluster.Name) bool { return c.lacks(c.world.needs(from, to, from == to)) })
	})
}

// worldScenarios sends the packets of all scenarios, and compares them with [proxy.Route]:
// the outcomes that scenarios expect are those of routed pods.
func (c *Config) worldScenarios(t *testing.T) {
	s := c.setUp(t)
	for _, group := range c.scenarioGroups(t) {
		snapshot := s.applyScenarios(t, group)
		var flights []flight
		for _, sc := range group {
			flights = append(flights, sc.flights()...)
		}
		flights = append(flights, s.nodePortFlights(30001, 30021, 30031, cluster.FirstNodePort)...)
		s.checkFlights(t, snapshot, flights)
	}
}
