package backendtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Config is the backend to test, and how to read its dataplane.
type Config struct {
	// New makes a backend for the network namespace of the calling thread. It
	// is called many times; each backend adopts what earlier ones left. Run
	// closes each backend: before it makes the next one, and the last one at the end.
	New func(testing.TB) proxy.Backend
	// Faulty makes a backend as New does, but each commit to the kernel must
	// be passed to around, which calls commit or not, and returns the error
	// with which the commit must end; a backend without transactions may do so for each operation. With it,
	// a tenth of all commits fails in tests that count no operations, and 30 % in Laws/Faults and
	// Laws/FaultPackets. Nil if the backend cannot do that.
	Faulty func(t testing.TB, around func(commit func() error) error) proxy.Backend
	// Dump returns all that backends of this kind have programmed in the
	// network namespace of the calling thread, as text that is equal for equal
	// dataplanes; empty if there is nothing.
	Dump func(testing.TB) string
	// Loopback makes a backend for the network namespace of the calling thread that serves node
	// ports at loopback addresses, beside that of New. It is closed in the end. Nil if there is none.
	Loopback func() (proxy.Backend, error)
	// Lacks are capabilities that the dataplane does not have by its kind.
	Lacks []Capability
	// Worlds are the worlds to test in, beside the node with a link for each pod.
	Worlds []World
	// Report is the document to compare with the run; none if its File is empty.
	Report Report

	course *course
	world  world
	// Tables says that the dataplane consists of nf_tables tables: the
	// program nft must then be able to list and to load them.
	Tables bool
}

func (c *Config) lacks(what Capability) bool {
	return slices.Contains(c.Lacks, what) || what == LoopbackNodePorts && c.Loopback == nil ||
		(what == FrontendAffinity || what == AffinityTimeout) && slices.Contains(c.Lacks, Affinity) ||
		what == NodeAddresses && slices.Contains(c.Lacks, ClientAddresses)
}

// Run runs all tests of the suite as subtests: the backend must meet the
// specification, [proxy.Route], and the laws of every dataplane.
// It needs the privileges to make network namespaces; call [Main] from TestMain.
//
// Some subtests run after Run has returned: release what Config uses with t.Cleanup, not with
// defer. The functions of Config may be called from several goroutines at once. The calling test
// must not call t.Parallel: the law Leaks counts files and goroutines of the process.
func Run(t *testing.T, c Config) {
	for _, what := range c.Lacks {
		if !known(what) {
			t.Fatalf("Config.Lacks: unknown capability %q", what)
		}
	}
	c.course = c.course.orNew()
	c.course.everything = testenv.Flag(t, everythingVariable)
	if !c.run(t, "Basics", c.testBasics) {
		c.course.end("Basics failed")
	}
	served := c.group(t, "Scenarios", c.testScenarios) && c.course.ended() == ""
	c.course.misrouted = !served
	if served {
		c.testPackets(t)
		c.testConnections(t)
	}
	c.group(t, "Poison", c.testPoison)
	c.group(t, "Laws", c.testLaws)
	if served {
		c.testWorlds(t)
	}
	report := false
	if c.Report.File != "" {
		c.group(t, "Report", func(*testing.T) { report = true })
	}
	// Subtests that run beside each other end after Run has returned.
	t.Cleanup(func() { c.conclude(t, served, report) })
}

// conclude says which tests were left out, and compares the report if it is wanted.
func (c *Config) conclude(t *testing.T, served, report bool) {
	t.Helper()
	switch over := c.course.ended(); {
	case over != "":
		t.Logf("%s: the other tests would tell nothing new, and are left out", over)
	case !served:
		t.Log("Scenarios failed: the other tests of packets, and the report, are left out")
	case report && t.Failed():
		t.Log("some tests failed: the report is left out")
	case report:
		c.testReport(t)
	case len(c.course.passed) == 0 && !t.Failed():
		t.Errorf("-run and -skip select no test of the suite, want some of %q", c.course.names)
	}
}

// testPackets compares the outcomes of packets with [proxy.Route].
func (c *Config) testPackets(t *testing.T) {
	c.runBeside(t, "Random", c.testRandom)
	c.runBeside(t, "Traffic", c.testTraffic)
	c.runBeside(t, "Transfers", c.testTransfers)
	if !c.lacks(LoopbackNodePorts) {
		c.runBeside(t, "Loopback", c.testLoopback)
	}
}

// testConnections runs the tests that compare several connections.
func (c *Config) testConnections(t *testing.T) {
	c.runBeside(t, "Affinity", c.testAffinity)
	c.runBeside(t, "Balance", c.testBalance)
	c.runBeside(t, "SamePorts", c.testSamePorts)
	c.runBeside(t, "Flows", c.testFlows)
	if !c.lacks(Failover) {
		c.runBeside(t, "Failover", c.testFailover)
	}
	if hasSCTP() {
		c.runBeside(t, "SCTP", c.testSCTP)
	} else {
		t.Log("SCTP is not tested: the kernel makes no sockets of SCTP")
	}
}

// stage is a testbed with a backend on its node.
type stage struct {
	*testbed
	subject
	config Config
}

func (c *Config) setUp(t testing.TB) *stage {
	t.Helper()
	begin := time.Now()
	s := &stage{testbed: setUpIn(t, c.world), config: *c}
	s.subject = subject{
		course: c.course, setUpTime: time.Since(begin),
		faults:  &faults{random: testenv.Random(t), percent: faultShare},
		lacking: c.lacks, renew: s.renew, dump: s.read, verify: s.readable,
		track: func() tracking { return s.tracker(nodeOptions()) },
	}
	s.lacks = c.lacks
	t.Cleanup(func() { s.close(t) })
	s.restart(t)
	return s
}

// renew makes a backend for the namespace of the node.
func (s *stage) renew(t testing.TB) (b proxy.Backend) {
	t.Helper()
	s.onNode(t, func() error {
		if s.config.Faulty != nil {
			b = s.config.Faulty(t, s.faults.around)
		} else {
			b = s.config.New(t)
		}
		return nil
	})
	return b
}

// onNode calls f in the namespace of the node.
func (s *stage) onNode(t testing.TB, f func() error) {
	t.Helper()
	err := s.node().Do(f)
	if t.Failed() {
		t.FailNow() // In f, FailNow ends f alone.
	}
	testenv.NoError(t, err)
}

// read returns what backends have programmed on the node.
func (s *stage) read(t testing.TB) (out string) {
	t.Helper()
	s.onNode(t, func() error {
		out = s.config.Dump(t)
		return nil
	})
	return out
}

// readable checks that nft can list and load the tables of the node.
func (s *stage) readable(t testing.TB) {
	t.Helper()
	if !s.config.Tables || s.world.name != "" { // Worlds may have foreign tables.
		return
	}
	if err := findNFT(t, s.node()).checkReadable(); err != nil {
		t.Error(err)
	}
}

// snapshotOf returns the snapshot of objects for the node of a testbed with both families.
func snapshotOf(t testing.TB, o proxy.TrackerOptions, all ...cluster.Objects) proxy.Snapshot {
	t.Helper()
	return resolve(t, proxy.NewServiceChangeTracker(o), all...)
}

// resolve updates a tracker with objects, and returns its snapshot.
func resolve(t testing.TB, tracker tracking, all ...cluster.Objects) proxy.Snapshot {
	t.Helper()
	for i := range all {
		all[i].HandTo(tracker)
	}
	tracker.Synced()
	s := snapshots.Next(t, tracker, proxy.Snapshot{})
	for p := range s.Problems() {
		t.Fatalf("objects of the test: got problem %v, want none", p)
	}
	return s
}

// testScenarios compares [proxy.Route] with the outcomes that every scenario expects, and the
// backend with [proxy.Route]. Scenarios with equal options are applied together.
func (c *Config) testScenarios(t *testing.T) {
	if c.course.ended() != "" {
		return
	}
	s := c.setUp(t)
	failed := 0
	for _, group := range c.scenarioGroups(t) {
		snapshot := s.applyScenarios(t, group)
		for _, sc := range group {
			if failed == mostFailed {
				t.Fatalf("%d scenarios failed: the others are left out", failed)
			}
			passed := c.run(t, "Scenarios/"+sc.name, func(t *testing.T) {
				s.checkDemands(t, sc, snapshot)
				s.checkFlights(t, snapshot, sc.flights())
			})
			if !passed {
				failed++
			}
		}
	}
}

// scenarioGroups returns the scenarios that need no capability that the backend lacks,
// grouped by equal options.
func (c *Config) scenarioGroups(t *testing.T) (groups [][]*scenario) {
	t.Helper()
	all, err := scenarios()
	testenv.NoError(t, err)
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
	var together []cluster.Objects
	for _, sc := range group {
		together = append(together, sc.objects)
	}
	snapshot := resolve(t, s.tracker(group[0].options), together...)
	s.apply(t, snapshot)
	s.readable(t)
	return snapshot
}

// checkDemands compares [proxy.Route] with the outcomes that a scenario expects.
func (s *stage) checkDemands(t *testing.T, sc *scenario, snapshot proxy.Snapshot) {
	t.Helper()
	for i := range sc.cases {
		c := &sc.cases[i]
		for _, f := range c.flights() {
			v := proxy.Route(snapshot, s.packet(f))
			if got := s.code(v, f.family()); got != c.want {
				t.Errorf("Route: %s (%s): got %s, want %s; reasons %q", c.line, f, got, c.want, v.Reasons)
			}
		}
	}
}

// checkFlights sends flights and reports those whose outcome differs from [proxy.Route].
func (s *stage) checkFlights(t testing.TB, snapshot proxy.Snapshot, flights []flight) {
	t.Helper()
	wrong, err := s.checkOracle(t.Context(), snapshot, flights)
	testenv.NoError(t, err)
	for i, w := range wrong {
		if i == mostReported {
			t.Errorf("%d more packets had wrong outcomes", len(wrong)-i)
			return
		}
		t.Error(w.message)
	}
}

// mostFailed is how many scenarios may fail before the others are left out, and mostReported how
// many packets with wrong outcomes are reported at a time.
const mostFailed, mostReported = 3, 5
