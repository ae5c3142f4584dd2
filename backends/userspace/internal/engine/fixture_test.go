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
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// engineVariable makes the test program run an engine between two addresses, until its
// input ends, and no tests.
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

// runEngine runs an engine. The specification has the address to listen at, and that of the only
// endpoint.
func runEngine(spec string) error {
	words := strings.Fields(spec)
	config := net.ListenConfig{KeepAlive: -1} // the backend sets it on its listening sockets
	config.SetMultipathTCP(false)
	listening, err := config.Listen(context.Background(), "tcp", words[0])
	if err != nil {
		return err
	}
	e, err := New(Config{})
	if err != nil {
		return err
	}
	w := &fixture{Engine: e, port: &proxy.ServicePort{Name: proxy.ServicePortName{Protocol: v1.ProtocolTCP}}}
	defer w.Close()
	w.serveAt(addrOf(listening.Addr()), netip.MustParseAddrPort(words[1]))
	w.Serve(Listener{Listener: listening})
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// fixture is an engine, which is closed when the test ends, and its only service port.
type fixture struct {
	*Engine
	port *proxy.ServicePort
}

func newFixture(t testing.TB, c Config, protocol v1.Protocol) *fixture {
	t.Helper()
	e, err := New(c)
	testenv.NoError(t, err)
	w := &fixture{Engine: e}
	t.Cleanup(w.Close)
	w.port = snapshots.Port("web/"+string(protocol), "")
	return w
}

// serveAt makes the frontend forward to the endpoints; without endpoints, it rejects.
func (w *fixture) serveAt(frontend netip.AddrPort, addrs ...netip.AddrPort) {
	p := *w.port
	p.Cluster = snapshots.At(addrs...)
	p.Frontends = snapshots.Port("", frontend.String(), objects.Many(len(addrs), func(i int) string { return addrs[i].String() })...).Frontends
	w.port = &p
	w.Apply(proxy.NewSnapshot(&proxy.Node{Name: "here"}, &p))
}

// countPodsAtLoopback makes each loopback address that of a pod, and not of the node.
func (w *fixture) countPodsAtLoopback() {
	w.Apply(proxy.NewSnapshot(&proxy.Node{LocalTraffic: proxy.LocalTraffic{Sources: snapshots.Prefixes("127.0.0.0/8")}}, w.port))
}

func (w *fixture) withAffinity(timeout time.Duration) *fixture {
	p := *w.port
	p.Affinity = affinity.Config{Timeout: timeout}
	w.port = &p
	return w
}

// listen serves connections at a loopback address until the test ends.
func (w *fixture) listen(t testing.TB) netip.AddrPort {
	t.Helper()
	l := loopback(t)
	w.Serve(Listener{Listener: l})
	return addrOf(l.Addr())
}

// loopback returns a listener at a loopback address.
func loopback(t testing.TB) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	testenv.NoError(t, err)
	return l
}

// server handles connections at a loopback address until the test ends.
func server(t testing.TB, handle func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	testenv.NoError(t, err)
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

// named starts a server that sends its own address, and then echoes. It returns the address.
func named(t testing.TB) netip.AddrPort {
	t.Helper()
	return server(t, func(c net.Conn) {
		_, _ = fmt.Fprintf(c, "%21s", c.LocalAddr())
		_, _ = io.Copy(c, c)
	})
}

// refusing returns an address that refuses connections. No program can listen at it before the
// test ends, since it is the local address of a connection.
func refusing(t testing.TB) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	testenv.NoError(t, err)
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
	testenv.NoError(t, err)
	t.Cleanup(func() { shut(c) })
	testenv.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return c
}

// wantReset connects, and checks that the connection is reset, at once or right after.
func wantReset(t testing.TB, to netip.AddrPort) {
	t.Helper()
	c, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(to))
	if err == nil {
		defer shut(c)
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, connectionReset) {
		t.Errorf("got error %v, want %v", err, connectionReset)
	}
}

// serverNameAt connects, and returns the name that the server sends, and the connection.
func serverNameAt(t testing.TB, to netip.AddrPort) (string, *net.TCPConn) {
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

// shut closes c; its error does not matter to a test.
func shut(c io.Closer) { _ = c.Close() }

func trim(s string) string {
	for s != "" && s[0] == ' ' {
		s = s[1:]
	}
	return s
}

// eventually waits, for a bounded time, until a condition holds.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// unresponsive is a dialer for which some addresses do not answer, like hosts that are down.
type unresponsive map[netip.AddrPort]bool

func (d unresponsive) dial(ctx context.Context, to Dial) (net.Conn, error) {
	if d[to.To] {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return DialBy(ctx, &net.Dialer{}, to)
}
