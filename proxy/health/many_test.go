package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// manyAddress is a loopback address that no other program uses.
const manyAddress = "127.77.0.1"

// The limits of file descriptors of tests.
const (
	fewDescriptors  = 512
	manyDescriptors = 20_000
)

func manyNode() *proxy.Node {
	return &proxy.Node{Name: "node-1", NodePorts: proxy.NodePortAddresses{Prefixes: snapshots.Prefixes(manyAddress + "/32")}}
}

func manyPorts(from, to int) []*proxy.ServicePort {
	return objects.Many(to-from, func(i int) *proxy.ServicePort {
		return servicePort(fmt.Sprintf("s%04d", from+i), v1.IPv4Protocol, uint16(10000+from+i), "10.0.0.1")
	})
}

// many runs a Server with real sockets at manyAddress, and keeps its reports.
type many struct {
	runner proxy.Observer

	mu      sync.Mutex
	reports map[string]error
}

func runMany(t *testing.T, o Options) *many {
	t.Helper()
	m := &many{reports: map[string]error{}}
	o.Report = func(name types.NamespacedName, err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.reports[name.Name] = err
		if err == nil {
			delete(m.reports, name.Name)
		}
	}
	s, r := watching(t, o)
	m.runner = r
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		s.run(ctx, &net.ListenConfig{}, func() ([]netip.Addr, error) { return snapshots.Addrs(manyAddress), nil })
		close(ended)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return m
}

func (m *many) reported() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.reports {
		names = append(names, name)
	}
	return names
}

// status returns the status of a response, 0 if there is none.
func status(t *testing.T, address string) int {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address)
	if err != nil {
		return 0
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	return response.StatusCode
}

// eventually waits up to a minute for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for range 6000 {
		if is() {
			return
		}
		<-ticker.C
	}
	t.Fatalf("%s: not after a minute", what)
}

// TestFiveThousandPorts opens real sockets: each is served, needs little memory, and is closed
// with its Service.
func TestFiveThousandPorts(t *testing.T) {
	const count = manyDescriptors / 4
	withManyDescriptors(t)
	m := runMany(t, Options{})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begin := time.Now()
	appliedAt(m.runner, manyNode(), manyPorts(0, count)...)
	last := fmt.Sprintf("%s:%d", manyAddress, 10000+count-1)
	eventually(t, "the last port is served", func() bool { return status(t, last) == http.StatusOK })
	took := time.Since(begin)
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)) / count
	t.Logf("%d ports are open after %v, with %d bytes each", count, took, each)
	if each > 32<<10 {
		t.Errorf("each port takes %d bytes, want at most 32 KiB", each)
	}
	for i := 0; i < count; i += 97 {
		if got := status(t, fmt.Sprintf("%s:%d", manyAddress, 10000+i)); got != http.StatusOK {
			t.Errorf("port %d: got status %d, want %d", 10000+i, got, http.StatusOK)
		}
	}
	appliedAt(m.runner, manyNode(), manyPorts(0, 10)...)
	eventually(t, "ports of removed Services are closed", func() bool { return status(t, last) == 0 })
	if got := status(t, manyAddress+":10000"); got != http.StatusOK {
		t.Errorf("a port that stays: got status %d, want %d", got, http.StatusOK)
	}
	if names := m.reported(); len(names) > 0 {
		t.Errorf("got reports of %q, want none", names)
	}
}

// TestDescriptorsAreLeft: health check node ports leave file descriptors for /healthz and the
// rest of the process; those above the limit are served when others are removed.
func TestDescriptorsAreLeft(t *testing.T) {
	const limit, count = fewDescriptors, 1000
	withFewDescriptors(t)
	m := runMany(t, Options{Address: "127.77.0.2:10256"})
	appliedAt(m.runner, manyNode(), manyPorts(0, count)...)
	eventually(t, "those above the bound are reported", func() bool { return len(m.reported()) == count-limit/4 })
	for address, want := range map[string]int{
		"127.77.0.2:10256/healthz":                         http.StatusOK,
		manyAddress + ":10000":                             http.StatusOK,
		fmt.Sprintf("%s:%d", manyAddress, 10000+limit/4-1): http.StatusOK,
		fmt.Sprintf("%s:%d", manyAddress, 10000+limit/4):   0,
	} {
		if got := status(t, address); got != want {
			t.Errorf("%s: got status %d, want %d", address, got, want)
		}
	}
	m.mu.Lock()
	err := m.reports["s0999"]
	m.mu.Unlock()
	if !errors.Is(err, errTooMany) || !strings.HasSuffix(err.Error(), "they use 128 sockets, a quarter of RLIMIT_NOFILE: raise it") {
		t.Errorf("got report %v, want %v with numbers", err, errTooMany)
	}
	appliedAt(m.runner, manyNode(), manyPorts(count-limit/4, count)...)
	eventually(t, "the last ones get the sockets of the first", func() bool {
		return !slices.ContainsFunc(m.reported(), func(name string) bool { return name >= fmt.Sprintf("s%04d", count-limit/4) })
	})
	if got := status(t, fmt.Sprintf("%s:%d", manyAddress, 10000+count-1)); got != http.StatusOK {
		t.Errorf("the last port: got status %d, want %d", got, http.StatusOK)
	}
}

// TestSocketsAreShared: Services get sockets in the order of their names, the proxy itself in any
// case, and waiting Services as soon as sockets are free.
func TestSocketsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSockets{start: time.Now()}
		s := newCheckServers(f, func(name types.NamespacedName, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.note(fmt.Sprintf("%s: %v", name.Name, err))
		}, 8)
		defer s.close()
		for _, name := range []string{"c", "b", "a", "d"} {
			s.set(key(name), http.NotFoundHandler(), []hostPort{{"tcp", name}})
		}
		s.open(t.Context())
		tooMany := fmt.Sprintf("%v: they use 2 sockets, a quarter of RLIMIT_NOFILE: raise it", errTooMany)
		f.want(t, "at first", "0s listen a", "0s listen b", "0s c: "+tooMany, "0s d: "+tooMany)
		s.set(types.NamespacedName{Name: "page"}, http.NotFoundHandler(), []hostPort{{"tcp", "page"}})
		s.remove(key("b"))
		s.open(t.Context())
		f.want(t, "when one is removed", "0s listen page", "0s listen c", "0s c: <nil>")
		s.remove(key("a"))
		s.remove(key("c"))
		s.open(t.Context())
		f.want(t, "when all others are removed", "0s listen d", "0s d: <nil>")
	})
}

// A client that holds very many connections gets a bounded number, and does not block others.
func TestConnLimit(t *testing.T) {
	const limit, held = 20, 100
	c := newConnLimit(limit)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "here") // The client notices a truncated response.
	}))
	server.Config.ConnState = c.note
	server.Start()
	defer server.Close()
	var all []net.Conn
	for i := range held {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		testenv.NoError(t, err)
		defer conn.Close() //nolint:errcheck // nothing was written
		all = append(all, conn)
		if i%10 != 0 {
			continue
		}
		response, err := server.Client().Get(server.URL)
		if err != nil {
			t.Fatalf("with %d connections held: %v", i+1, err)
		}
		text, err := io.ReadAll(response.Body)
		if err != nil || string(text) != "here" {
			t.Errorf("with %d connections held: got response %q and error %v, want \"here\"", i+1, text, err)
		}
		_ = response.Body.Close() // It was read to the end.
	}
	for i, conn := range all[:held-limit] {
		testenv.NoError(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
		if n, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Fatalf("connection %d: got %d bytes and error %v, want its end", i, n, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) > limit {
		t.Errorf("got %d connections, want at most %d", len(c.conns), limit)
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
