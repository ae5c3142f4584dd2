package backendtest

import "testing"

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
	c.run(t, "Random", c.testRandom)
	c.run(t, "Traffic", c.testTraffic)
	c.run(t, "Transfers", c.testTransfers)
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
