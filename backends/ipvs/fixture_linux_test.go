//go:build ipvs

package ipvs

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// stage is a network namespace with a backend in it.
type stage struct {
	*stagetest.Stage[Options]
	// kernel reads and changes virtual servers as another program.
	kernel *ipvs.Conn
}

func newStage(t testing.TB, o Options) *stage {
	t.Helper()
	s := &stage{}
	s.Stage = stagetest.NewStage(t, o, func(o Options) (proxy.Backend, error) {
		// In a virtual machine, the first use of iptables-legacy after iptables-nft may fail.
		if err := Prepare(t.Context(), o); err != nil {
			if err := Prepare(t.Context(), o); err != nil {
				return nil, err
			}
		}
		b, err := newBackend(o)
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	})
	s.kernel = netnstest.Open(t, s.NS, ipvs.Open)
	return s
}

func (s *stage) backend(t testing.TB) *backend {
	t.Helper()
	b, ok := s.Backend.(*backend)
	if !ok {
		t.Fatalf("backend: got a %T, want a *backend", s.Backend)
	}
	return b
}

// restart closes the backend and opens another one, as another process does.
func (s *stage) restart(t testing.TB) {
	t.Helper()
	testenv.NoError(t, s.backend(t).Close())
	s.Restart(t)
}

// number is the number of IPVS that moby/ipvs asks for once in a process.
//
//go:linkname number github.com/moby/ipvs.ipvsFamily
var number int //nolint:gochecknoglobals // it is a variable of moby/ipvs

// asNewProcess gives the process the number that IPVS has now, and loads ip_vs.
func asNewProcess(t testing.TB) {
	t.Helper()
	f, err := netlink.GenlFamilyGet("IPVS")
	testenv.NoError(t, err)
	number = int(f.ID)
}

// startAgain is restart in a new process.
func (s *stage) startAgain(t testing.TB) {
	t.Helper()
	asNewProcess(t)
	s.restart(t)
}

// run runs a program in the namespace, and returns what it writes.
func (s *stage) run(t testing.TB, command string) string {
	t.Helper()
	out, err := s.try(t, command)
	testenv.NoError(t, err)
	return out
}

func (s *stage) try(t testing.TB, command string) (string, error) {
	t.Helper()
	words := strings.Fields(command)
	return netnstest.Run(t, s.NS, "", words[0], words[1:]...)
}

// dump returns what is programmed.
func (s *stage) dump(t testing.TB) (out string) {
	t.Helper()
	err := s.NS.Do(func() (err error) {
		out, err = Dump(t.Context(), s.Options)
		return err
	})
	testenv.NoError(t, err)
	return out
}

// isAsFresh compares what is programmed with what a first Apply makes in another namespace.
func (s *stage) isAsFresh(t testing.TB, when string) {
	t.Helper()
	fresh := newStage(t, s.Options)
	fresh.Apply(t, s.Applied)
	if diff := cmp.Diff(fresh.dump(t), s.dump(t)); diff != "" {
		t.Errorf("%s: objects in the kernel (-after a first Apply +got):\n%.4000s", when, diff)
	}
}

// adopts restarts the backend, which must find everything as it wants it.
func (s *stage) adopts(t testing.TB, want proxy.Snapshot) {
	t.Helper()
	s.restart(t)
	s.Apply(t, want)
	if got := s.Operations(t); got != 0 {
		t.Errorf("operations after a restart: got %d, want 0", got)
	}
}

// destinations returns the real servers of a service port's first frontend, by their address, without their connections.
func (s *stage) destinations(t testing.TB, p *proxy.ServicePort) map[netip.AddrPort]ipvs.Destination {
	t.Helper()
	all, err := s.kernel.Destinations(serverKeyOf(p))
	testenv.NoError(t, err)
	out := map[netip.AddrPort]ipvs.Destination{}
	for _, d := range all {
		d.Connections = 0
		out[d.Addr] = d
	}
	return out
}

func serverKeyOf(p *proxy.ServicePort) ipvs.ServiceKey {
	return ipvs.ServiceKey{Protocol: ipaddr.ProtocolNumber(p.Name.Protocol), Addr: p.Frontends[0].Addr}
}

// await waits until something is so.
func await(t testing.TB, what string, isSo func() bool) {
	t.Helper()
	for start := time.Now(); !isSo(); {
		if time.Since(start) > time.Minute {
			t.Fatalf("%s: got nothing within a minute, want it", what)
		}
		testenv.NoError(t, pause.For(t.Context(), 50*time.Millisecond))
	}
}

// apply applies as a Runner does: once more from what an error leaves, up to a few times. It
// returns the errors.
func (s *stage) apply(t testing.TB, want proxy.Snapshot) (errs []error) {
	t.Helper()
	for range 4 {
		err := s.Backend.Apply(t.Context(), s.Applied, want)
		s.Applied = s.Applied.Achieved(want, err)
		if err == nil {
			return errs
		}
		errs = append(errs, err)
	}
	return errs
}

// talkers are servers behind the node, and clients before it.
type talkers struct {
	*stagetest.Row
	real []netip.AddrPort
}

const talkPort = 7777

func newTalkers(t *testing.T, s *stage, hosts int) *talkers {
	t.Helper()
	w := &talkers{Row: stagetest.NewRow(s.Lab, hosts)}
	for _, a := range w.Hosts {
		w.real = append(w.real, netip.AddrPortFrom(a, talkPort))
	}
	s.Lab.Serve("servers", "talker", talkPort)
	return w
}

// listenSCTP adds servers of SCTP.
func (w *talkers) listenSCTP(t *testing.T) {
	t.Helper()
	for _, at := range w.real {
		l, err := w.Server.ListenSCTP(at)
		testenv.NoError(t, err)
		testenv.CloseAtEnd(t, lab.ServeOn(l, "talker"))
	}
}

// conversation is a connection of a client.
type conversation struct{ *lab.Conn }

// open connects to an address, from a source if it is valid.
func (w *talkers) open(t testing.TB, network string, to netip.AddrPort, source netip.Addr) (*conversation, error) {
	t.Helper()
	x := &conversation{}
	var err error
	if source.IsValid() {
		d := net.Dialer{Timeout: 20 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))}
		err = w.Client.Do(func() error {
			c, err := d.DialContext(t.Context(), network, to.String())
			x.Conn = lab.NewConn(c)
			return err
		})
	} else {
		x.Conn, err = lab.Dial(t.Context(), w.Client, network, to.String())
	}
	if err != nil {
		return nil, err
	}
	t.Cleanup(x.reset)
	return x, nil
}

// reset ends the connection by an RST, so that the kernel forgets it soon.
func (c *conversation) reset() { _ = c.Close() }

// ask returns the server that answers.
func (c *conversation) ask() (netip.Addr, error) { return c.askWithin(20 * time.Second) }

func (c *conversation) askWithin(patience time.Duration) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, err := c.Ask(ctx)
	return a.Own.Addr(), err
}

// asks requires an answer of a server.
func (c *conversation) asks(t testing.TB, when string, want netip.Addr) {
	t.Helper()
	if got, err := c.ask(); err != nil || got != want {
		t.Errorf("%s: open connection: got an answer of %v, error %v, want one of %v", when, got, err, want)
	}
}

// openTo opens connections until one reaches a server, and closes the others.
func (w *talkers) openTo(t testing.TB, network string, to netip.AddrPort, server netip.Addr) *conversation {
	t.Helper()
	for range 20 {
		c, err := w.open(t, network, to, netip.Addr{})
		testenv.NoError(t, err)
		got, err := c.ask()
		testenv.NoError(t, err)
		if got == server {
			return c
		}
		c.reset()
	}
	t.Fatalf("20 connections to %v: none reached %v", to, server)
	return nil
}

// reach opens connections and requires that they reach only one server.
func (w *talkers) reach(t testing.TB, when, network string, to netip.AddrPort, want netip.Addr) {
	t.Helper()
	for range 6 {
		c, err := w.open(t, network, to, netip.Addr{})
		if err != nil {
			t.Errorf("%s: new connection to %v: got error %v, want none", when, to, err)
			return
		}
		c.asks(t, when+", new connection", want)
		c.reset()
	}
}

// port returns service port i, with endpoints at some of the talkers.
func (w *talkers) port(i int, servers ...int) *proxy.ServicePort {
	p := stagetest.Port(v1.IPv4Protocol, i, 0)
	for _, n := range servers {
		p.Cluster = append(p.Cluster, w.endpoint(n))
	}
	return p
}

func (w *talkers) endpoint(i int) *endpoints.Endpoint {
	return &endpoints.Endpoint{Addr: w.real[i], Ready: true, Serving: true}
}

func snapshotOf(ports ...*proxy.ServicePort) proxy.Snapshot {
	return proxy.NewSnapshot(stagetest.Node(), ports...)
}
