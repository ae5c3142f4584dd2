package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// engineVariable makes this program, instead of running tests, an engine between
// two addresses, until its input ends.
const engineVariable = "VIPKIT_MEASURE_ENGINE"

func TestMain(m *testing.M) {
	if spec := os.Getenv(engineVariable); spec != "" {
		if err := runEngine(spec); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func runEngine(spec string) error {
	from, to, _ := strings.Cut(spec, " ")
	config := net.ListenConfig{KeepAlive: -1} // the socket that listens has it, where it matters
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), "tcp", from)
	if err != nil {
		return err
	}
	e, err := New(Config{})
	if err != nil {
		return err
	}
	w := world{Engine: e, port: &proxy.ServicePort{Name: proxy.ServicePortName{Protocol: v1.ProtocolTCP}}}
	defer w.Close()
	w.serveAt(addrOf(l.Addr()), netip.MustParseAddrPort(to))
	if tcp, ok := l.(*net.TCPListener); ok {
		if l, err = e.Listener(tcp); err != nil {
			return err
		}
	}
	go func() { _ = w.Serve(Door{Listener: l}) }()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// world is a service port with its engine, which ends with the test.
type world struct {
	*Engine
	port *proxy.ServicePort
}

func newWorld(t testing.TB, c Config, protocol v1.Protocol) *world {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Engine: e}
	t.Cleanup(w.Close)
	w.port = &proxy.ServicePort{
		Name: proxy.ServicePortName{NamespacedName: types.NamespacedName{Namespace: "test", Name: "web"}, Protocol: protocol, Family: v1.IPv4Protocol},
	}
	return w
}

func sortedPool(addrs ...netip.AddrPort) []*endpoints.Endpoint {
	pool := make([]*endpoints.Endpoint, len(addrs))
	for i, a := range addrs {
		pool[i] = &endpoints.Endpoint{Addr: a, Ready: true, Serving: true}
	}
	for i := range pool {
		for j := i; j > 0 && pool[j].Compare(pool[j-1]) < 0; j-- {
			pool[j], pool[j-1] = pool[j-1], pool[j]
		}
	}
	return pool
}

// serveAt makes the frontend forward to endpoints; none of them is a reason to
// reject.
func (w *world) serveAt(frontend netip.AddrPort, addrs ...netip.AddrPort) {
	p := *w.port
	p.Cluster = sortedPool(addrs...)
	route := proxy.TrafficRoute{Action: proxy.Forward}
	if len(addrs) == 0 {
		route.Action = proxy.Reject
	}
	p.Frontends = []proxy.Frontend{{Addr: frontend, FromInside: route, FromOutside: route}}
	w.port = &p
	w.Apply(proxy.NewSnapshot(&proxy.Node{Name: "here"}, &p))
}

func (w *world) sticky(timeout time.Duration) *world {
	p := *w.port
	p.Affinity = affinity.Config{Timeout: timeout}
	w.port = &p
	return w
}

// listen serves connections at a loopback address until the test ends.
func (w *world) listen(t testing.TB) netip.AddrPort {
	t.Helper()
	l := w.listener(t)
	w.open(t, Door{Listener: l})
	return addrOf(l.Addr())
}

// listener gives an engine's one at a loopback address.
func (w *world) listener(t testing.TB) net.Listener {
	t.Helper()
	tcp, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := w.Listener(tcp)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// open serves the connections of a door until the test ends.
func (w *world) open(t testing.TB, d Door) {
	done := make(chan error, 1)
	go func() { done <- w.Serve(d) }()
	t.Cleanup(func() {
		w.Close()
		if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
}

// server answers connections at a loopback address until the test ends.
func server(t testing.TB, handle func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { shut(c) })
			wg.Go(func() {
				defer stop()
				defer shut(c)
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		shut(l)
		cancel()
		wg.Wait()
	})
	return addrOf(l.Addr())
}

// named is a server that says its own address, and then what it is told.
func named(t testing.TB) netip.AddrPort {
	t.Helper()
	return server(t, func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "%21s", c.LocalAddr())
		_, _ = io.Copy(c, c)
	})
}

// refusing gives an address at which nobody listens, nor can anybody before the test
// ends: a connection begins there.
func refusing(t testing.TB) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(l) })
	return addrOf(dialFrom(t, "127.0.0.1", addrOf(l.Addr())).LocalAddr())
}

func dialTo(t testing.TB, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	return dial(t, nil, to)
}

// dialFrom connects from an address of the loopback network.
func dialFrom(t testing.TB, from string, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	return dial(t, &net.TCPAddr{IP: net.ParseIP(from)}, to)
}

func dial(t testing.TB, from *net.TCPAddr, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := net.DialTCP("tcp4", from, net.TCPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(c) })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// wantReset connects and wants that to be refused, at once or right after.
func wantReset(t testing.TB, to netip.AddrPort) {
	t.Helper()
	c, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(to))
	if err == nil {
		defer shut(c)
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want %v", err, syscall.ECONNRESET)
	}
}

// whoAt connects and gives the name of the server.
func whoAt(t testing.TB, to netip.AddrPort) (string, *net.TCPConn) {
	t.Helper()
	c := dialTo(t, to)
	return readName(t, c), c
}

func readName(t testing.TB, c net.Conn) string {
	t.Helper()
	var name [21]byte
	if _, err := io.ReadFull(c, name[:]); err != nil {
		t.Fatalf("reading the name of the server: %v", err)
	}
	return trim(string(name[:]))
}

// shut closes what a test is done with.
func shut(c io.Closer) { _ = c.Close() }

func trim(s string) string {
	for s != "" && s[0] == ' ' {
		s = s[1:]
	}
	return s
}

// eventually waits, for a bounded time, for something that other goroutines do.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// deaf is a dialer to whom some addresses do not answer, like hosts that are
// gone.
type deaf map[netip.AddrPort]bool

func (d deaf) dial(ctx context.Context, to Dial) (net.Conn, error) {
	if d[to.To] {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return dialAny(ctx, to)
}
