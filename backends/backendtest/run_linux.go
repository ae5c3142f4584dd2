package backendtest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Config says which backend is tested, and how to look at it.
type Config struct {
	// New makes a backend for the network namespace of the calling thread. It
	// is called many times; each backend made later takes over what the
	// earlier ones left.
	New func(testing.TB) proxy.Backend
	// Faulty makes a backend as New does, but one whose every commit to the
	// kernel goes through around: it calls commit, or does not, and gives the
	// error that the commit is to end with. With it, a tenth of all commits
	// fails wherever nothing is counted. Nil if the backend cannot do that.
	Faulty func(t testing.TB, around func(commit func() error) error) proxy.Backend
	// Dump gives, in a form that is the same for the same dataplane, all that
	// backends of this kind have programmed in the network namespace of the
	// calling thread; empty if nothing.
	Dump func(testing.TB) string
	// Lacks are abilities that the dataplane does not have by its nature.
	Lacks []Capability
	// Worlds are those that it is tested in besides the one with a link for each pod.
	Worlds []World
	// Report is where the run is reported, if it is.
	Report Report

	results results
	world   world
	// Tables says that the dataplane consists of nf_tables tables: the
	// program nft must then be able to list and to load it.
	Tables bool
}

func (c *Config) lacks(what Capability) bool { return slices.Contains(c.Lacks, what) }

// Run holds a backend to the specification and to the laws, each a subtest.
// It takes the privileges to make network namespaces; call [Main] from TestMain.
func Run(t *testing.T, c Config) {
	for _, what := range c.Lacks {
		if !known(what) {
			t.Fatalf("the backend lacks %q, which is no capability of the suite", what)
		}
	}
	c.results = results{}
	t.Run("Scenarios", c.testScenarios)
	c.testPackets(t)
	c.testRest(t)
	c.testWorlds(t)
	if c.Report.File != "" {
		t.Run("Report", c.testReport)
	}
}

// testPackets holds the backend to [proxy.Route].
func (c *Config) testPackets(t *testing.T) {
	c.run(t, "Random", c.testRandom)
	c.run(t, "Traffic", c.testTraffic)
	c.run(t, "Transfers", c.testTransfers)
}

// testRest holds the backend to all that the packets of single connections do not show.
func (c *Config) testRest(t *testing.T) {
	c.run(t, "Affinity", c.testAffinity)
	c.run(t, "Balance", c.testBalance)
	if !c.lacks(Failover) {
		c.run(t, "Failover", c.testFailover)
	}
	t.Run("Poison", c.testPoison)
	t.Run("Laws", c.testLaws)
}

// stage is a testbed with a backend on its node.
type stage struct {
	*testbed
	config  Config
	backend proxy.Backend
	applied proxy.Snapshot
	faults  *faults
}

func (c *Config) setUp(t testing.TB) *stage {
	t.Helper()
	s := &stage{testbed: setUpIn(t, c.world), config: *c, faults: &faults{random: testenv.Random(t), percent: faultShare}}
	s.lacks = c.lacks
	s.restart(t)
	return s
}

// restart puts a new backend in the place of the one before, as a new process
// would: it knows nothing.
func (s *stage) restart(t testing.TB) {
	t.Helper()
	s.onNode(t, func() error {
		if s.config.Faulty != nil {
			s.backend = s.config.Faulty(t, s.faults.around)
		} else {
			s.backend = s.config.New(t)
		}
		return nil
	})
	s.applied = proxy.Snapshot{}
}

// onNode calls f in the namespace of the node.
func (s *stage) onNode(t testing.TB, f func() error) {
	t.Helper()
	if err := s.node().Do(f); err != nil {
		t.Fatal(err)
	}
}

// apply brings the dataplane to a snapshot, however often commits fail.
func (s *stage) apply(t testing.TB, next proxy.Snapshot) {
	t.Helper()
	var err error
	for range patienceWithFaults {
		if err = s.try(t, next); err == nil {
			return
		}
	}
	t.Fatalf("Apply does not succeed in %d tries: %v", patienceWithFaults, err)
}

// dump gives what is on the node.
func (s *stage) dump(t testing.TB) (out string) {
	t.Helper()
	s.onNode(t, func() error {
		out = s.config.Dump(t)
		return nil
	})
	return out
}

// readable holds the node to what operators expect of tables.
func (s *stage) readable(t testing.TB) {
	t.Helper()
	if !s.config.Tables || s.world.name != "" { // Others have tables there, too.
		return
	}
	if err := findNFT(t, s.node()).checkReadable(t.Context()); err != nil {
		t.Error(err)
	}
}

// snapshotOf resolves objects for the node of a testbed with both families.
func snapshotOf(t testing.TB, o proxy.TrackerOptions, all ...objects) proxy.Snapshot {
	t.Helper()
	return resolve(t, proxy.NewServiceChangeTracker(o), all...)
}

// resolve hands objects to a tracker.
func resolve(t testing.TB, tracker proxy.ServiceChangeTracker, all ...objects) proxy.Snapshot {
	t.Helper()
	for i := range all {
		all[i].handTo(tracker)
	}
	tracker.Synced()
	s, err := tracker.Next(t.Context(), proxy.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	for p := range s.Problems() {
		t.Fatalf("the objects of a test are wrong: %v", p)
	}
	return s
}

// testScenarios holds every scenario to its own demands, and the backend to
// what [proxy.Route] says of it. Scenarios with equal options are applied
// together.
func (c *Config) testScenarios(t *testing.T) {
	s := c.setUp(t)
	for _, group := range c.scenarioGroups(t) {
		snapshot := s.applyScenarios(t, group)
		for _, sc := range group {
			c.run(t, "Scenarios/"+sc.name, func(t *testing.T) {
				s.demands(t, sc, snapshot)
				s.hold(t, snapshot, sc.flights())
			})
		}
	}
}

// scenarioGroups gives the scenarios that the backend can be asked about, those with
// equal options together.
func (c *Config) scenarioGroups(t *testing.T) (groups [][]*scenario) {
	t.Helper()
	all, err := scenarios()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for _, sc := range all {
		if sc.hasAffinity() && c.lacks(Affinity) || sc.hasPodInterfaces() && c.lacks(PodInterfaces) {
			continue
		}
		key := fmt.Sprintf("%+v", sc.options)
		i, known := at[key]
		if !known {
			i = len(groups)
			at[key], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], sc)
	}
	return groups
}

// applyScenarios applies a group of scenarios.
func (s *stage) applyScenarios(t *testing.T, group []*scenario) proxy.Snapshot {
	t.Helper()
	var together []objects
	for _, sc := range group {
		together = append(together, sc.objects)
	}
	snapshot := resolve(t, s.tracker(group[0].options), together...)
	s.apply(t, snapshot)
	s.readable(t)
	return snapshot
}

// demands holds [proxy.Route] to what a scenario says.
func (s *stage) demands(t *testing.T, sc *scenario, snapshot proxy.Snapshot) {
	t.Helper()
	for i := range sc.cases {
		c := &sc.cases[i]
		for _, f := range c.flights() {
			v := proxy.Route(snapshot, s.packet(f))
			if got := s.code(v, f.family()); got != c.want {
				t.Errorf("Route: %s (%s): got %s, want %s, since %q", c.line, f, got, c.want, v.Reasons)
			}
		}
	}
}

// hold sends flights and reports what does not go as [proxy.Route] says.
func (s *stage) hold(t testing.TB, snapshot proxy.Snapshot, flights []flight) {
	t.Helper()
	wrong, err := s.checkOracle(t.Context(), snapshot, flights)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w.message)
	}
}

// operations gives the number of kernel operations of the backend so far, if it
// counts them.
func (s *stage) operations(t testing.TB) uint64 {
	t.Helper()
	c, ok := s.backend.(proxy.OperationCounter)
	if !ok {
		t.Skip("the backend does not count its operations")
	}
	return c.Operations()
}
