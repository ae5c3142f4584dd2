package e2e_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	endpointsEach    = 10
	changesPerSecond = 50
)

// TestScale fills an API server with Services and has one agent follow it. It is small
// unless VIPKIT_SERVICES says how many Services there shall be; then what it prints are
// the figures of docs/performance.md, on a machine that does nothing else.
func TestScale(t *testing.T) {
	services, duration := 200, 5*time.Second
	if text := os.Getenv("VIPKIT_SERVICES"); text != "" {
		var err error
		if services, err = strconv.Atoi(text); err != nil || services < changesPerSecond {
			t.Fatalf("VIPKIT_SERVICES is %q, want a number from %d on", text, changesPerSecond)
		}
		duration = time.Minute
	}
	c := newCluster(t, "nftables")
	n := c.nodes[0]
	began := time.Now()
	c.fill(services)
	t.Logf("%d Services with %d endpoints each, made in %v", services, endpointsEach, time.Since(began).Round(time.Millisecond))

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
		t.Errorf("p99 is %v, want at most 100ms", p99)
	}
	if cores > 0.5 {
		t.Errorf("the agent took %.2f cores, want at most half a core", cores)
	}
	testIdle(t, n)
}

// testIdle has nothing happen for a while.
func testIdle(t *testing.T, n *node) {
	before, was := generation(t, n), n.usage()
	const while = 3 * time.Second
	time.Sleep(while)
	t.Logf("idle for %v: %v of processor time", while, n.usage().processor-was.processor)
	if after := generation(t, n); after != before {
		t.Errorf("without a change the ruleset went from generation %d to %d", before, after)
	}
}

// quantile gives the value that a share of all do not exceed. It sorts them.
func quantile(all []time.Duration, share float64) time.Duration {
	slices.Sort(all)
	return all[min(len(all)-1, int(float64(len(all))*share))]
}

// logStages tells what the agent says of itself: in which time 99 of 100 changes
// passed a stage, as far as its histograms can tell.
func (n *node) logStages(t *testing.T) {
	t.Helper()
	_, text, err := get(n.ns, "http://127.0.0.1:10249/metrics")
	if err != nil {
		t.Fatal(err)
	}
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
			t.Fatalf("there are no metrics %s", name)
		}
		i := slices.IndexFunc(counts, func(c float64) bool { return c >= 0.99*counts[len(counts)-1] })
		t.Logf("the agent's own p99 of stage %s: at most %s s", stage, bounds[i])
	}
}

// fill makes the Services, with sixteen clients.
func (c *cluster) fill(services int) {
	c.t.Helper()
	var all sync.WaitGroup
	failures := make(chan error, services)
	numbers := make(chan int)
	for range 16 {
		all.Go(func() {
			for i := range numbers {
				if err := c.makeFilling(i); err != nil {
					failures <- err
				}
			}
		})
	}
	for i := range services {
		numbers <- i
	}
	close(numbers)
	all.Wait()
	close(failures)
	for err := range failures {
		c.t.Fatal(err)
	}
}

// makeFilling makes a Service and its EndpointSlice, as a controller would.
func (c *cluster) makeFilling(i int) error {
	ctx := c.t.Context()
	name := fmt.Sprintf("s%d", i)
	_, err := c.client.CoreV1().Services("default").Create(ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Name: "p", Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	portName, port, ready := "p", int32(podPort), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
	for j := range endpointsEach {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address(10, i*endpointsEach+j).String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	_, err = c.client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
	return err
}

// address is one that nothing else has.
func address(first byte, i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(i))
	b[0] = first
	return netip.AddrFrom4(b)
}

// follower knows when the addresses of new endpoints came: out of the API server, and
// into the kernel.
type follower struct {
	t       *testing.T
	mu      sync.Mutex
	told    map[netip.Addr]time.Time
	reached map[netip.Addr]time.Time
}

// follow watches EndpointSlices beside the agent, and what it writes to the node's kernel.
func (c *cluster) follow(n *node) *follower {
	c.t.Helper()
	f := &follower{t: c.t, told: map[netip.Addr]time.Time{}, reached: map[netip.Addr]time.Time{}}
	list, err := c.client.DiscoveryV1().EndpointSlices("default").List(c.t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w, err := c.client.DiscoveryV1().EndpointSlices("default").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		c.t.Fatal(err)
	}
	socket, err := listenToTables(n.ns)
	if err != nil {
		c.t.Fatal(err)
	}
	var both sync.WaitGroup
	both.Go(func() { f.hear(w) })
	both.Go(func() { f.see(socket) })
	c.t.Cleanup(func() {
		w.Stop()
		cancel()
		_ = socket.Close() // It was only read.
		both.Wait()
	})
	return f
}

func (f *follower) hear(w watch.Interface) {
	for e := range w.ResultChan() {
		if s, ok := e.Object.(*discoveryv1.EndpointSlice); ok && len(s.Endpoints) > 0 {
			f.note(f.told, netip.MustParseAddr(s.Endpoints[0].Addresses[0]))
		}
	}
}

// see finds addresses in what the kernel says about its tables.
func (f *follower) see(socket *os.File) {
	message := make([]byte, 1<<16)
	for {
		n, err := socket.Read(message)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			f.t.Errorf("listening to changes of tables: %v", err)
			return
		}
		for i := 0; i+4 <= n; i += 4 { // Attributes are aligned.
			if message[i] == 11 {
				f.note(f.reached, netip.AddrFrom4([4]byte(message[i:])))
			}
		}
	}
}

// note remembers the first time.
func (f *follower) note(in map[netip.Addr]time.Time, a netip.Addr) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := in[a]; !known {
		in[a] = now
	}
}

// change replaces an endpoint at a time, and gives how long each took from the API server
// to the kernel.
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
	eventually(c.t, "all changes are in the kernel", func() error {
		latencies = f.latencies()
		if len(latencies) != count {
			return fmt.Errorf("%d of %d are", len(latencies), count)
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
		if told, ok := f.told[a]; ok {
			// The agent may be faster than the watch beside it.
			all = append(all, max(at.Sub(told), 0))
		}
	}
	return all
}

// usage is what the agent has taken.
type usage struct {
	processor      time.Duration
	resident, peak string
}

func (u usage) String() string {
	return fmt.Sprintf("%v of processor time, %s resident, %s at most", u.processor, u.resident, u.peak)
}

func (n *node) usage() usage {
	n.t.Helper()
	folder := fmt.Sprintf("/proc/%d/", n.agent.process.Pid)
	stat, err := os.ReadFile(folder + "stat")
	if err != nil {
		n.t.Fatal(err)
	}
	// The second field is the program's name in parentheses.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var u usage
	for _, field := range fields[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			n.t.Fatal(err)
		}
		u.processor += time.Duration(ticks) * 10 * time.Millisecond
	}
	status, err := os.ReadFile(folder + "status")
	if err != nil {
		n.t.Fatal(err)
	}
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
