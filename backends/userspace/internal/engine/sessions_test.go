package engine

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// A session is kept while either side uses it, whenever it began.
func TestUsedSessionsLive(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(w *fixture, s *fakeSocket, answers replies){
		"client": func(w *fixture, _ *fakeSocket, answers replies) { w.Datagram(memoryFlow(), []byte("?"), answers) },
		"endpoint": func(_ *fixture, s *fakeSocket, answers replies) {
			s.incoming <- nil
			<-answers
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				socket, answers := newFakeSocket(), make(replies, 1)
				w := newMemory(t, Config{Hooks: Hooks{Dial: dialInTurn(socket)}})
				time.Sleep(time.Hour)
				w.Datagram(memoryFlow(), []byte("?"), answers)
				for range 5 {
					time.Sleep(45 * time.Second)
					if got := w.CountConnections().Sessions; got != 1 {
						t.Fatalf("a session used every 45 s, with a timeout of 60 s: got %d sessions, want 1", got)
					}
					use(w, socket, answers)
				}
				time.Sleep(75 * time.Second)
				synctest.Wait()
				if got := w.CountConnections().Sessions; got != 0 {
					t.Errorf("after the timeout: got %d sessions, want none", got)
				}
			})
		})
	}
}

// The failure of an endpoint that refused datagrams is removed when it answers again.
func TestAnswersClearFailures(t *testing.T) {
	t.Parallel()
	socket, answers := newFakeSocket(), make(replies, 1)
	w := newMemory(t, Config{Hooks: Hooks{Dial: dialInTurn(socket)}})
	w.failures.recordFailure(failureKey{addr: memoryEndpoint, protocol: v1.ProtocolUDP}, memoryClient.Addr())
	w.Datagram(memoryFlow(), []byte("?"), answers)
	if w.failures.count.Load() == 0 {
		t.Error("sending a datagram has removed the failure, want only an answer to remove it")
	}
	socket.incoming <- nil
	<-answers
	if got := w.failures.count.Load(); got != 0 {
		t.Errorf("failures after an answer: got %d, want none", got)
	}
}

// If the snapshot changes while the socket of a session is opened, the datagram is sent to the
// same endpoint as later ones.
func TestSessionsFollowChangesWhileTheyBegin(t *testing.T) {
	t.Parallel()
	one, two := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
	other := netip.MustParseAddrPort("10.96.0.9:80")
	first := forwarding("first", memoryFrontend, one)
	for name, next := range map[string][]*proxy.ServicePort{
		"another endpoint": {forwarding("first", memoryFrontend, two)},
		"another Service":  {forwarding("first", other, one), forwarding("second", memoryFrontend, two)},
	} {
		t.Run(name, func(t *testing.T) {
			sockets := map[netip.AddrPort]*fakeSocket{one: newFakeSocket(), two: newFakeSocket()}
			var w *fixture
			w = newFixture(t, Config{Hooks: Hooks{Dial: func(_ context.Context, d Dial) (net.Conn, error) {
				w.Apply(proxy.NewSnapshot(&proxy.Node{}, next...))
				return sockets[d.To], nil
			}}}, v1.ProtocolUDP)
			w.Apply(proxy.NewSnapshot(&proxy.Node{}, first))
			w.Datagram(memoryFlow(), []byte("?"), nil)
			wantSent(t, sockets[one])
			wantSent(t, sockets[two], "?")
		})
	}
}

// A datagram to a Service without endpoints calls Hooks.FirstConnection, and does not wait for
// an endpoint.
func TestDatagramsCallFirstConnection(t *testing.T) {
	t.Parallel()
	var called []proxy.ServicePortName
	socket := newFakeSocket()
	w := newFixture(t, Config{Hooks: Hooks{
		Dial:            dialInTurn(socket),
		FirstConnection: func(_ Flow, n proxy.ServicePortName) { called = append(called, n) },
	}}, v1.ProtocolUDP)
	w.serveAt(memoryFrontend)
	w.Datagram(memoryFlow(), []byte("lost"), nil)
	want := []proxy.ServicePortName{w.port.Name}
	if !slices.Equal(called, want) || w.CountConnections().Denied != 1 {
		t.Errorf("got calls for %v and %d denied datagrams, want %v and 1", called, w.CountConnections().Denied, want)
	}
	w.serveAt(memoryFrontend, memoryEndpoint)
	w.Datagram(memoryFlow(), []byte("?"), nil)
	wantSent(t, socket, "?")
	p := *w.port
	p.Frontends = slices.Clone(p.Frontends)
	p.Frontends[0].Restricted = true
	w.Apply(proxy.NewSnapshot(&proxy.Node{}, &p))
	w.Datagram(memoryFlow(), []byte("lost"), nil)
	if !slices.Equal(called, want) {
		t.Errorf("got calls for %v, want %v only, and none for ports that forward or are restricted", called, want)
	}
}

// failingReplier is a replier that fails.
type failingReplier struct{ err error }

func (f failingReplier) Reply(Flow, []byte) error { return f.err }

// An answer that cannot be sent is lost; if the listener is closed, the session ends.
func TestAnswersThatCannotBeSent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want int
	}{{syscall.ENOBUFS, 1}, {net.ErrClosed, 0}} {
		socket := newFakeSocket()
		w := newMemory(t, Config{Hooks: Hooks{Dial: dialInTurn(socket)}})
		w.Datagram(memoryFlow(), []byte("?"), failingReplier{c.err})
		for range 2 {
			select {
			case socket.incoming <- nil:
			case <-socket.closed:
			}
		}
		if c.want == 0 {
			<-socket.closed
			eventually(t, "the session has ended", func() bool { return w.CountConnections().Sessions == 0 })
		}
		if got := w.CountConnections().Sessions; got != c.want {
			t.Errorf("%v: got %d sessions, want %d", c.err, got, c.want)
		}
	}
}

// Ending a session does not end the one that has replaced it.
func TestSessionsEndAlone(t *testing.T) {
	t.Parallel()
	one, two := newFakeSocket(), newFakeSocket()
	w := newMemory(t, Config{Hooks: Hooks{Dial: dialInTurn(one, two)}})
	w.Datagram(memoryFlow(), []byte("one"), nil)
	old := w.sessions.use(memoryFlow(), 0)
	w.sessions.end(old)
	w.Datagram(memoryFlow(), []byte("two"), nil)
	w.sessions.end(old)
	if s := w.sessions.use(memoryFlow(), 0); s == nil || s == old {
		t.Error("ending a session has ended the one that replaced it")
	}
}
