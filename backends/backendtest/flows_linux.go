package backendtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
)

// flowsEach is how many datagram flows a client has to each frontend: enough that each of two endpoints
// has some.
const flowsEach = 4

// liveFlow is a UDP client that keeps its port.
type liveFlow struct {
	flight
	flow *lab.Flow
	// by is the server that answered last; empty if none did.
	by string
}

// flowStage is a stage with clients that keep their ports, and a cleaner of flows.
type flowStage struct {
	*stage
	tracker tracking
	cleaner *conntrack.Cleaner
	flows   []*liveFlow
}

// testFlows changes a Service while UDP clients keep their ports. After each change, which a
// cleaner of flows follows as with a Runner, each client must be treated as [proxy.Route] says; and a client whose
// endpoint Route allows before and after a change must keep it, and lose no datagram meanwhile.
func (c *Config) testFlows(t *testing.T) {
	s := &flowStage{stage: c.setUp(t)}
	s.calm()
	s.tracker = s.stage.tracker(nodeOptions())
	s.startCleaner(t)
	x := &cluster.Sample{
		Number: 1, Type: v1.ServiceTypeLoadBalancer, External: v1.ServiceExternalTrafficPolicyCluster,
		Endpoints: []cluster.Endpoint{{At: cluster.Local}, {At: cluster.Remote}},
	}
	s.change(t, "the Service is new", x)
	s.open(t, x)
	s.check(t, "the Service is new")
	const localPolicy, local = v1.ServiceExternalTrafficPolicyLocal, v1.ServiceInternalTrafficPolicyLocal
	for _, step := range []struct {
		what string
		edit func()
	}{
		{"external policy Local", func() { x.External = localPolicy }},
		{"external policy Cluster", func() { x.External = v1.ServiceExternalTrafficPolicyCluster }},
		{"an endpoint more", func() { x.Endpoints = append(x.Endpoints, cluster.Endpoint{At: cluster.Remote2}) }},
		{"internal policy Local", func() { x.Internal = local }},
		{"both policies Local", func() { x.External = localPolicy }},
		{"both policies Cluster", func() { x.Internal, x.External = "", v1.ServiceExternalTrafficPolicyCluster }},
		{"an endpoint less", func() { x.Endpoints = slices.Delete(x.Endpoints, 1, 2) }},
		{"allowed sources", func() { x.Ranges = []string{"10.0.0.6/32"} }},
		{"all sources", func() { x.Ranges = nil }},
		{"no endpoint on the node, policy Local", func() { x.External, x.Endpoints = localPolicy, x.Endpoints[1:] }},
		{"policy Cluster again", func() { x.External = v1.ServiceExternalTrafficPolicyCluster }},
		{"no endpoint", func() { x.Endpoints = nil }},
		{"endpoints again", func() { x.Endpoints = []cluster.Endpoint{{At: cluster.Local}, {At: cluster.Remote}} }},
	} {
		step.edit()
		s.change(t, step.what, x)
		s.check(t, step.what)
	}
	const again = "everything is applied again, as after a change of another program"
	s.applyWhile(t, again, true)
	s.check(t, again)
	if c.lacks(Adoption) {
		return // A new process finds no frontends of an earlier one.
	}
	for _, o := range x.Objects().Services {
		s.tracker.DeleteService(nameOf(o))
	}
	s.restart(t)
	s.startCleaner(t)
	s.applyWhile(t, "the Service was deleted while no process ran", true)
	s.check(t, "the Service was deleted while no process ran")
}

// startCleaner replaces the cleaner by a new one, as a new process does.
func (s *flowStage) startCleaner(t *testing.T) {
	t.Helper()
	s.onNode(t, func() (err error) {
		s.cleaner, err = conntrack.New(conntrack.Options{})
		return err
	})
	t.Cleanup(func() {
		if err := s.cleaner.Close(); err != nil {
			t.Error(err)
		}
	})
}

// change hands a sample to the tracker, and applies the snapshot.
func (s *flowStage) change(t *testing.T, what string, x *cluster.Sample) {
	t.Helper()
	o := x.Objects()
	o.HandTo(s.tracker)
	s.tracker.Synced()
	s.applyWhile(t, what, s.applied.IsZero())
}

// applyWhile applies the newest snapshot, if full is set from zero, while clients send.
func (s *flowStage) applyWhile(t *testing.T, what string, full bool) {
	t.Helper()
	before := s.applied
	if full {
		s.applied = proxy.Snapshot{}
	}
	next := snapshots.Next(t, s.tracker, s.applied)
	changed := make(chan struct{})
	var clients sync.WaitGroup
	for _, f := range s.flows {
		if f.by == "" || s.lacking(PolicyFlows) || !slices.Contains(s.servers(before, f.flight), f.by) || !slices.Contains(s.servers(next, f.flight), f.by) {
			continue
		}
		clients.Go(func() {
			if r := f.askUntil(t.Context(), changed); r.Outcome != lab.Answered {
				t.Errorf("%s: %s: a client of %s that keeps its port got %s, want that %s answers each datagram", what, f.flight, f.by, r, f.by)
			}
		})
	}
	s.apply(t, next)
	if found := s.backend.Abilities().FoundFrontends; found != nil && full {
		s.cleaner.AddFrontends(found())
	}
	if err := s.cleaner.RemoveStale(t.Context(), s.applied, full); err != nil {
		t.Errorf("%s: cleaning flows: got error %v, want none", what, err)
	}
	close(changed)
	clients.Wait()
}

// askUntil asks until the end, and once more, and returns the first answer that is not of the same server, or else the
// last one.
func (f *liveFlow) askUntil(ctx context.Context, end <-chan struct{}) (r lab.Reply) {
	for ended := false; !ended; {
		select {
		case <-end:
			ended = true
		case <-time.After(time.Millisecond):
		}
		if r = f.flow.Ask(ctx); nameOfServer(r.String()) != f.by {
			return lab.Reply{Outcome: lab.Failed, Err: fmt.Errorf("%s", r)}
		}
	}
	return r
}

// open opens the flows of clients to a sample.
func (s *flowStage) open(t *testing.T, x *cluster.Sample) {
	t.Helper()
	from := []cluster.Name{cluster.Client, cluster.Outside}
	if !s.lacking(PolicyFlows) {
		from = append(from, cluster.Node)
	}
	for _, c := range clients([]v1.Protocol{v1.ProtocolUDP}, from...) {
		to := c.flightsTo(x)
		for _, f := range s.reachable([]flight{to[0], to[2], to[3]}) { // ClusterIP, load balancer, node port
			s.keep(t, f)
		}
	}
}

// keep opens flows of a flight, which stay open until the end of the test.
func (s *flowStage) keep(t *testing.T, f flight) {
	t.Helper()
	flows, err := s.stage.open(&probe{from: f.from, protocol: f.protocol, to: f.to, tries: flowsEach})
	testenv.NoError(t, err)
	for _, opened := range flows {
		t.Cleanup(opened.Close)
		s.flows = append(s.flows, &liveFlow{flight: f, flow: opened})
	}
}

// check sends a datagram on each flow, and compares the answer with [proxy.Route]. Where Route
// forwards, a client may have to send again: the dataplane may lose the first datagram to a new endpoint.
func (s *flowStage) check(t *testing.T, what string) {
	t.Helper()
	var clients sync.WaitGroup
	for _, f := range s.flows {
		clients.Go(func() {
			want := s.servers(s.applied, f.flight)
			had := f.by
			r := s.ask(t.Context(), f, want)
			f.by = nameOfServer(r.String())
			if !slices.Contains(want, f.by) {
				t.Errorf("%s: %s: a client that keeps its port got %s after %q had answered, want one of %q", what, f.flight, r, had, want)
			}
			if r.Outcome != lab.Answered {
				f.by = ""
			}
		})
	}
	clients.Wait()
}

// ask asks until there is an outcome other than silence, unless silence is wanted.
func (s *flowStage) ask(ctx context.Context, f *liveFlow, want []string) (r lab.Reply) {
	silent := lab.Reply{Outcome: lab.Silence}.String()
	f.flow.Patience = shortPatience
	defer func() { f.flow.Patience = patience }()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if r = f.flow.Ask(ctx); r.String() != silent || slices.Contains(want, silent) {
			return r
		}
	}
	return r
}

// servers returns the servers that may answer a flight, or other outcomes as [reply.String] has them. A flow keeps
// the address that its endpoint sees, so these are not compared.
func (s *flowStage) servers(at proxy.Snapshot, f flight) (names []string) {
	for _, a := range s.allowed(f, proxy.Route(at, s.packet(f))) {
		names = append(names, nameOfServer(a))
	}
	return names
}

func nameOfServer(outcome string) string {
	name, _, _ := strings.Cut(outcome, " sees ")
	return name
}
