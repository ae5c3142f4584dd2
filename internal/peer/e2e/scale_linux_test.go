package e2e_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	endpointsEach    = 10
	changesPerSecond = 50
)

// TestScale fills an API server with Services and measures one agent. It is small unless
// VIPKIT_SERVICES sets the number of Services; then it prints the figures of
// docs/performance.md, on an otherwise idle machine.
func TestScale(t *testing.T) {
	services, duration := 200, 5*time.Second
	if text := os.Getenv("VIPKIT_SERVICES"); text != "" {
		var err error
		if services, err = strconv.Atoi(text); err != nil || services < changesPerSecond {
			t.Fatalf("VIPKIT_SERVICES: got %q, want a number, at least %d", text, changesPerSecond)
		}
		duration = time.Minute
	}
	c := newCluster(t, "nftables")
	n := c.nodes[0]
	began := time.Now()
	c.fill(services)
	t.Logf("%d Services with %d endpoints each, created in %v", services, endpointsEach, time.Since(began).Round(time.Millisecond))

	began = time.Now()
	c.startAgents()
	n.awaitSync()
	first := n.usage()
	t.Logf("start to the first sync: %v, %v", time.Since(began).Round(time.Millisecond), first)

	f := c.follow(n)
	began = time.Now()
	latencies := c.change(f, services, duration)
	took, now := time.Since(began), n.usage()
	cores := (now.processor - first.processor).Seconds() / took.Seconds()
	p50, p99 := quantile(latencies, 0.5), quantile(latencies, 0.99)
	t.Logf("%d changes at %d a second: from the watch event to the kernel p50 %v, p99 %v, most %v; %.2f cores, %v",
		len(latencies), changesPerSecond, p50, p99, quantile(latencies, 1), cores, now)
	n.logStages(t)
	if p99 > 100*time.Millisecond {
		t.Errorf("p99: got %v, want at most 100ms", p99)
	}
	if cores > 0.5 {
		t.Errorf("cores of the agent: got %.2f, want at most 0.5", cores)
	}
	testIdle(t, n)
}

// testIdle measures the agent for a while without changes.
func testIdle(t *testing.T, n *node) {
	before, was := generation(t, n), n.usage()
	const while = 3 * time.Second
	time.Sleep(while)
	t.Logf("idle for %v: %v of processor time", while, n.usage().processor-was.processor)
	if after := generation(t, n); after != before {
		t.Errorf("generation of the ruleset without a change: got %[2]d, want %[1]d", before, after)
	}
}

// quantile returns the value that a share of all do not exceed. It sorts them.
func quantile(all []time.Duration, share float64) time.Duration {
	slices.Sort(all)
	return all[min(len(all)-1, int(float64(len(all))*share))]
}

// logStages logs the 99th percentile of each stage, by the agent's own histograms.
func (n *node) logStages(t *testing.T) {
	t.Helper()
	_, text, err := get(n.ns, "http://127.0.0.1:10249/metrics")
	testenv.NoError(t, err)
	for _, stage := range []string{"queue", "apply", "total"} {
		name := `vipkit_change_duration_seconds_bucket{kind="EndpointSlice",stage="` + stage + `",le="`
		var bounds []string
		var counts []float64
		for line := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(line, name); ok {
				bound, count, _ := strings.Cut(strings.TrimSpace(rest), `"} `)
				number, err := strconv.ParseFloat(count, 64)
				if err != nil {
					t.Fatalf("metric %q: %v", line, err)
				}
				bounds, counts = append(bounds, bound), append(counts, number)
			}
		}
		if len(counts) == 0 {
			t.Fatalf("metrics %s: got none", name)
		}
		i := slices.IndexFunc(counts, func(c float64) bool { return c >= 0.99*counts[len(counts)-1] })
		t.Logf("the agent's own p99 of stage %s: at most %s s", stage, bounds[i])
	}
}

// fill creates the Services, with sixteen clients.
func (c *cluster) fill(services int) {
	c.t.Helper()
	testenv.NoError(c.t, testenv.Each(services, 16, c.makeFiller))
}

// makeFiller creates a Service and its EndpointSlice, like the controller.
func (c *cluster) makeFiller(i int) error {
	ctx := c.t.Context()
	name := fmt.Sprintf("s%d", i)
	_, err := c.client.CoreV1().Services("default").Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Name: "p", Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	slice := objects.Slice(name, name, objects.Many(endpointsEach, func(j int) string { return address(10, i*endpointsEach+j).String() + " R" })...)
	slice.Ports = objects.SlicePorts(fmt.Sprintf("p %d", podPort))
	_, err = c.client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	return err
}

// address returns a unique address.
func address(first byte, i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(i))
	b[0] = first
	return netip.AddrFrom4(b)
}

// follower records when the addresses of new endpoints arrived: at a watch of the API server,
// and in the kernel.
type follower struct {
	t       *testing.T
	mu      sync.Mutex
	watched map[netip.Addr]time.Time
	reached map[netip.Addr]time.Time
}

// follow watches EndpointSlices like the agent, and the changes of nf_tables of the node.
func (c *cluster) follow(n *node) *follower {
	c.t.Helper()
	f := &follower{t: c.t, watched: map[netip.Addr]time.Time{}, reached: map[netip.Addr]time.Time{}}
	list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.t.Context(), metav1.ListOptions{Limit: 1})
	testenv.NoError(c.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	w, err := c.client.DiscoveryV1().EndpointSlices("default").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	testenv.NoError(c.t, err)
	socket, err := listenToTables(n.ns)
	testenv.NoError(c.t, err)
	var both sync.WaitGroup
	both.Go(func() { f.receive(w) })
	both.Go(func() { f.readKernel(socket) })
	c.t.Cleanup(func() {
		w.Stop()
		cancel()
		socket.Close()
		both.Wait()
	})
	return f
}

func (f *follower) receive(w watch.Interface) {
	for e := range w.ResultChan() {
		if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok && len(s.Endpoints) > 0 {
			f.note(f.watched, netip.MustParseAddr(s.Endpoints[0].Addresses[0]))
		}
	}
}

// readKernel finds addresses in the kernel's notifications about tables.
func (f *follower) readKernel(socket *nl.NetlinkSocket) {
	for {
		messages, _, err := socket.Receive()
		if f.t.Context().Err() != nil {
			return // The socket is closed.
		}
		if err != nil {
			f.t.Errorf("reading notifications of nf_tables: %v", err)
			return
		}
		for _, m := range messages {
			for i := 0; i+4 <= len(m.Data); i += 4 { // Attributes are aligned.
				if m.Data[i] == 11 {
					f.note(f.reached, netip.AddrFrom4([4]byte(m.Data[i:])))
				}
			}
		}
	}
}

// note records the first time.
func (f *follower) note(in map[netip.Addr]time.Time, a netip.Addr) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := in[a]; !known {
		in[a] = now
	}
}

// change replaces endpoints, one at a time, and gives the times between the watch event and
// the kernel's notification.
func (c *cluster) change(f *follower, services int, duration time.Duration) []time.Duration {
	c.t.Helper()
	tick := time.NewTicker(time.Second / changesPerSecond)
	defer tick.Stop()
	slices := c.client.DiscoveryV1().EndpointSlices("default")
	count := int(duration.Seconds()) * changesPerSecond
	var all sync.WaitGroup
	failures := make(chan error, count)
	for i := range count {
		<-tick.C
		all.Go(func() {
			patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/0/addresses/0","value":%q}]`, address(11, i))
			_, err := slices.Patch(c.t.Context(), fmt.Sprintf("s%d", i%services), types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
			if err != nil {
				failures <- err
			}
		})
	}
	all.Wait()
	close(failures)
	for err := range failures {
		c.t.Fatal(err)
	}
	var latencies []time.Duration
	eventually(c.t, "the kernel has all changes", func() error {
		latencies = f.latencies()
		if len(latencies) != count {
			return fmt.Errorf("got %d of %d", len(latencies), count)
		}
		return nil
	})
	return latencies
}

func (f *follower) latencies() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []time.Duration
	for a, at := range f.reached {
		if watched, ok := f.watched[a]; ok {
			// The agent may be faster than the watch of the test.
			all = append(all, max(at.Sub(watched), 0))
		}
	}
	return all
}

// usage is the processor time and memory of the agent.
type usage struct {
	processor      time.Duration
	resident, peak string
}

func (u usage) String() string {
	return fmt.Sprintf("%v of processor time, %s resident, %s at most", u.processor, u.resident, u.peak)
}

func (n *node) usage() usage {
	n.t.Helper()
	folder := fmt.Sprintf("/proc/%d/", n.agent.ID())
	stat, err := os.ReadFile(folder + "stat")
	testenv.NoError(n.t, err)
	// The second field is the program's name in parentheses.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var u usage
	for _, field := range fields[11:13] {
		ticks, err := strconv.Atoi(field)
		testenv.NoError(n.t, err)
		u.processor += time.Duration(ticks) * 10 * time.Millisecond
	}
	status, err := os.ReadFile(folder + "status")
	testenv.NoError(n.t, err)
	for line := range strings.Lines(string(status)) {
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "VmRSS":
			u.resident = strings.TrimSpace(value)
		case "VmHWM":
			u.peak = strings.TrimSpace(value)
		}
	}
	return u
}
