package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/servertest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// world runs a Server on loopback and records what it does with sockets.
type world struct {
	*Server
	runner  proxy.Observer
	events  chan string // "listen ADDRESS", "close ADDRESS"
	reports chan string // "NAME: ERROR"
	stop    context.CancelFunc
	ended   chan struct{}
}

func run(t *testing.T, o Options) *world {
	t.Helper()
	w := &world{
		events: make(chan string, 1000), reports: make(chan string, 1000), ended: make(chan struct{}),
	}
	o.Report = func(name types.NamespacedName, err error) { w.reports <- fmt.Sprintf("%s: %v", name.Name, err) }
	w.Server, w.runner = watching(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	w.stop = cancel
	go func() {
		w.run(ctx, w, w.addresses)
		close(w.ended)
	}()
	t.Cleanup(func() { cancel(); <-w.ended })
	return w
}

func (w *world) addresses() ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}, nil
}

func (w *world) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w.events <- "listen " + address
	return &watchedListener{Listener: l, closed: sync.OnceFunc(func() { w.events <- "close " + address })}, nil
}

type watchedListener struct {
	net.Listener
	closed func()
}

// Close records the call that has closed the socket: a concurrent one fails at once, while the
// socket is still open.
func (l *watchedListener) Close() error {
	err := l.Listener.Close()
	if err == nil {
		l.closed()
	}
	return err
}

// wantEvents waits for events, in any order among those of one call.
func (w *world) wantEvents(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for range want {
		got = append(got, next(t, w.events))
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("sockets (-want +got):\n%s", diff)
	}
}

func next(t *testing.T, from <-chan string) string {
	t.Helper()
	select {
	case s := <-from:
		return s
	case <-time.After(time.Minute):
		t.Fatal("got no event within a minute")
		return ""
	}
}

// freePorts returns ports that are free at the moment.
func freePorts(t *testing.T, n int) []uint16 {
	t.Helper()
	var ports []uint16
	for len(ports) < n {
		if p := servertest.FreePort(t); !slices.Contains(ports, p) {
			ports = append(ports, p)
		}
	}
	return ports
}

func at(host string, port uint16) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// get returns the parts of a response that a load balancer uses.
func get(t *testing.T, address string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	r, err := client.Get("http://" + address + "/any/path")
	testenv.NoError(t, err)
	body, err := io.ReadAll(r.Body)
	testenv.NoError(t, r.Body.Close())
	testenv.NoError(t, err)
	return fmt.Sprintf("%d weight %s, %s, %s\n%s", r.StatusCode, r.Header.Get("X-Load-Balancing-Endpoint-Weight"),
		r.Header.Get("Content-Type"), r.Header.Get("X-Content-Type-Options"), body)
}

// replyOf returns the golden response at a health check node port, as get does.
func replyOf(status, weight int, name string, healthy bool) string {
	return fmt.Sprintf("%d weight %d, application/json, nosniff\n", status, weight) +
		"{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"" + name + "\"\n\t},\n" +
		fmt.Sprintf("\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}", weight, healthy)
}

func wantReply(t *testing.T, address, want string) {
	t.Helper()
	testenv.Same(t, want, get(t, address), "%s: response", address)
}

func TestServicePorts(t *testing.T) {
	w := run(t, Options{})
	p := freePorts(t, 2)
	applied(w.runner, servicePort("a", v1.IPv4Protocol, p[0], "10.0.0.1", "10.0.0.2"), servicePort("a", v1.IPv6Protocol, p[0], "fd00::1"),
		servicePort("b", v1.IPv4Protocol, p[1]))
	w.wantEvents(t, "listen "+at("127.0.0.1", p[0]), "listen "+at("::1", p[0]), "listen "+at("127.0.0.1", p[1]), "listen "+at("::1", p[1]))
	wantReply(t, at("127.0.0.1", p[0]), replyOf(200, 2, "a", true))
	wantReply(t, at("::1", p[0]), replyOf(200, 1, "a", true))
	wantReply(t, at("127.0.0.1", p[1]), replyOf(503, 0, "b", true))

	// Counts change in place; the only family of a Service counts for both.
	applied(w.runner, servicePort("a", v1.IPv4Protocol, p[0]), servicePort("a", v1.IPv6Protocol, p[0], "fd00::1"),
		servicePort("b", v1.IPv4Protocol, p[1], "10.0.0.9"))
	wantReply(t, at("127.0.0.1", p[0]), replyOf(503, 0, "a", true))
	wantReply(t, at("::1", p[1]), replyOf(200, 1, "b", true))

	// What is not programmed does not count.
	w.runner.Synced(proxy.Sync{Snapshot: proxy.NewSnapshot(atLoopback()), Err: io.ErrUnexpectedEOF})
	wantReply(t, at("::1", p[1]), replyOf(200, 1, "b", true))

	// Two Services swap their ports.
	applied(w.runner, servicePort("a", v1.IPv4Protocol, p[1], "10.0.0.1"), servicePort("b", v1.IPv4Protocol, p[0]))
	w.wantEvents(t, "close "+at("127.0.0.1", p[0]), "close "+at("::1", p[0]), "close "+at("127.0.0.1", p[1]), "close "+at("::1", p[1]))
	w.wantEvents(t, "listen "+at("127.0.0.1", p[0]), "listen "+at("::1", p[0]), "listen "+at("127.0.0.1", p[1]), "listen "+at("::1", p[1]))
	wantReply(t, at("127.0.0.1", p[1]), replyOf(200, 1, "a", true))
	wantReply(t, at("127.0.0.1", p[0]), replyOf(503, 0, "b", true))

	applied(w.runner, servicePort("b", v1.IPv4Protocol, p[0]))
	w.wantEvents(t, "close "+at("127.0.0.1", p[1]), "close "+at("::1", p[1]))
	if c, err := net.Dial("tcp", at("127.0.0.1", p[1])); err == nil {
		t.Errorf("after the Service was removed: connected to %v, want no listener", c.RemoteAddr())
	}
	w.stop()
	w.wantEvents(t, "close "+at("127.0.0.1", p[0]), "close "+at("::1", p[0]))
	<-w.ended
	if len(w.reports) > 0 {
		t.Errorf("got report %s, want none", <-w.reports)
	}
}

func TestUnhealthyProxyKeepsWeight(t *testing.T) {
	s, r := watching(t, Options{})
	applied(r, servicePort("a", v1.IPv4Protocol, 30000, "10.0.0.1"))
	s.fresh.pending = time.Now().Add(-timeout)
	serve(t, s.serviceHandler(key("a")), func(address string) {
		wantReply(t, address, replyOf(503, 1, "a", false))
	})
}

// A request that arrives while the port is being closed gets a response.
func TestRemovedService(t *testing.T) {
	s, r := watching(t, Options{})
	applied(r, servicePort("a", v1.IPv4Protocol, 30000, "10.0.0.1"))
	serve(t, s.serviceHandler(key("a")), func(address string) {
		applied(r)
		wantReply(t, address, replyOf(503, 0, "a", true))
	})
}

func serve(t *testing.T, h http.Handler, test func(address string)) {
	t.Helper()
	server := http.Server{Handler: h}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	test(l.Addr().String())
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("got error %v, want %v", err, http.ErrServerClosed)
	}
}

func TestOneSocketForBothFamilies(t *testing.T) {
	w := run(t, Options{})
	p := freePorts(t, 1)
	everywhere := &proxy.Node{NodePorts: proxy.NodePortAddresses{All: true}}
	appliedAt(w.runner, everywhere, servicePort("a", v1.IPv4Protocol, p[0], "10.0.0.1"),
		servicePort("a", v1.IPv6Protocol, p[0], "fd00::1", "fd00::2"))
	w.wantEvents(t, "listen "+at("", p[0]))
	wantReply(t, at("127.0.0.1", p[0]), replyOf(200, 1, "a", true))
	wantReply(t, at("::1", p[0]), replyOf(200, 2, "a", true))
}

func TestAddressOfHealthz(t *testing.T) {
	p := freePorts(t, 1)
	w := run(t, Options{Address: at("127.0.0.1", p[0])})
	w.wantEvents(t, "listen "+at("127.0.0.1", p[0]))
	r, err := http.Get("http://" + at("127.0.0.1", p[0]) + "/healthz")
	testenv.NoError(t, err)
	if r.StatusCode != 200 {
		t.Errorf("/healthz: got status %d, want 200", r.StatusCode)
	}
	if err := r.Body.Close(); err != nil {
		t.Error(err)
	}
	// The connection is still open and idle: that must not delay the end.
	w.stop()
	<-w.ended
	if _, err := http.Get("http://" + at("127.0.0.1", p[0]) + "/healthz"); err == nil {
		t.Error("after Run has ended: got a response, want none")
	}
}

// A port that another program uses does not affect other ports.
func TestConflict(t *testing.T) {
	w := run(t, Options{})
	p := freePorts(t, 2)
	port, free := p[0], p[1]
	used, err := net.Listen("tcp", at("127.0.0.1", port))
	testenv.NoError(t, err)
	applied(w.runner, servicePort("a", v1.IPv4Protocol, port, "10.0.0.1"), servicePort("b", v1.IPv4Protocol, free, "10.0.0.1"))
	w.wantEvents(t, "listen "+at("::1", port), "listen "+at("127.0.0.1", free), "listen "+at("::1", free))
	wantReply(t, at("127.0.0.1", free), replyOf(200, 1, "b", true))
	wantReply(t, at("::1", port), replyOf(200, 1, "a", true))
	_, inUse := net.Listen("tcp", at("127.0.0.1", port))
	if got, want := next(t, w.reports), fmt.Sprintf("a: %v", inUse); got != want {
		t.Errorf("got report %q, want %q", got, want)
	}
	testenv.NoError(t, used.Close())
	w.wantEvents(t, "listen "+at("127.0.0.1", port)) // a second later
	wantReply(t, at("127.0.0.1", port), replyOf(200, 1, "a", true))
	if got, want := next(t, w.reports), "a: <nil>"; got != want {
		t.Errorf("got report %q, want %q", got, want)
	}
}

// backend reports drift, and can hang and fail.
type backend struct {
	proxy.NoAbilities
	mu              sync.Mutex
	drifted, hangs  bool
	err             error
	applies, checks int
}

func (b *backend) Apply(ctx context.Context, _, _ proxy.Snapshot) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.applies++
	if b.hangs {
		b.mu.Unlock()
		<-ctx.Done()
		b.mu.Lock()
		return ctx.Err()
	}
	return b.err
}

func (b *backend) Cleanup(context.Context) error { return nil }

func (b *backend) Abilities() proxy.Abilities { return proxy.Abilities{Drifted: b.isDrifted} }

func (b *backend) isDrifted(context.Context) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checks++
	return b.drifted
}

func (b *backend) set(drifted, hangs bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drifted, b.hangs, b.err = drifted, hangs, err
}

// An idle Runner is healthy as long as it verifies the dataplane.
func TestWithARunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{}
		tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{})
		runner := &proxy.Runner{Source: tracker, Backend: b, ResyncInterval: 30 * time.Second}
		s, err := New(Options{})
		testenv.NoError(t, err)
		runner.Observers = []proxy.Observer{s.Observer()}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- runner.Run(ctx) }()
		want := func(why string, after time.Duration, status int) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got, body := request(t, s, http.MethodGet, "/livez"); got != status {
				t.Errorf("%s: got %d, want %d; %s", why, got, status, body)
			}
		}
		want("the tracker is not synced", 10*time.Minute, 200)
		tracker.Synced()
		want("an idle day", 24*time.Hour, 200)
		b.mu.Lock()
		if b.applies != 1 || b.checks != 24*60*2 {
			t.Errorf("got %d Applies and %d checks for drift, want 1 and one every 30 seconds", b.applies, b.checks)
		}
		b.mu.Unlock()

		b.set(true, false, errors.New("no"))
		want("the dataplane cannot be repaired, for a while", 59*time.Second, 200)
		want("the dataplane cannot be repaired", time.Second, 503)
		b.set(true, false, nil)
		want("the dataplane is repaired", time.Minute, 200)
		b.set(true, true, nil)
		want("the dataplane hangs, for a while", 29*time.Second, 200)
		want("the dataplane hangs", time.Minute, 503)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
