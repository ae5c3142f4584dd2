package engine

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// fakeSocket is a UDP socket whose errors and incoming datagrams a test decides.
type fakeSocket struct {
	net.Conn // nil: no other method is called

	mu       sync.Mutex
	refusals []error // of the next datagrams
	sent     []string
	incoming chan error // nil: an answer
	closed   chan struct{}
	close    func()
}

func newFakeSocket(refusals ...error) *fakeSocket {
	s := &fakeSocket{refusals: refusals, incoming: make(chan error), closed: make(chan struct{})}
	s.close = sync.OnceFunc(func() { close(s.closed) })
	return s
}

func (s *fakeSocket) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.closed:
		return 0, net.ErrClosed
	default:
	}
	if len(s.refusals) > 0 {
		err := s.refusals[0]
		s.refusals = s.refusals[1:]
		return 0, err
	}
	s.sent = append(s.sent, string(b))
	return len(b), nil
}

func (s *fakeSocket) Read([]byte) (int, error) {
	select {
	case err := <-s.incoming:
		return 0, err
	case <-s.closed:
		return 0, net.ErrClosed
	}
}

func (s *fakeSocket) Close() error {
	s.close()
	return nil
}

func (s *fakeSocket) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// dialInTurn returns a dialer that returns the sockets in turn.
func dialInTurn(all ...*fakeSocket) func(context.Context, Dial) (net.Conn, error) {
	var mu sync.Mutex
	return func(context.Context, Dial) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if len(all) == 0 {
			return nil, errors.New("the test has no more sockets")
		}
		s := all[0]
		all = all[1:]
		return s, nil
	}
}

// replies collects answers.
type replies chan string

func (r replies) Reply(_ Flow, datagram []byte) error {
	r <- string(datagram)
	return nil
}

func memoryFlow() Flow {
	return Flow{Protocol: v1.ProtocolUDP, Client: memoryClient, Frontend: memoryFrontend}
}

// newMemory returns a fixture with one frontend for UDP and one endpoint.
func newMemory(t *testing.T, c Config) *fixture {
	t.Helper()
	w := newFixture(t, c, v1.ProtocolUDP)
	w.serveAt(memoryFrontend, memoryEndpoint)
	return w
}

// wantSent checks which datagrams a socket has sent.
func wantSent(t *testing.T, s *fakeSocket, want ...string) {
	t.Helper()
	if got := s.got(); !slices.Equal(got, want) {
		t.Errorf("the endpoint got %q, want %q", got, want)
	}
}

// While the socket of a session is opened, another listener may receive a datagram of the
// same flow. Both datagrams are sent, by one session.
func TestTwoFirstDatagrams(t *testing.T) {
	t.Parallel()
	one, two := newFakeSocket(), newFakeSocket()
	var w *fixture
	first := true
	hand := dialInTurn(one, two)
	w = newMemory(t, Config{Hooks: Hooks{Dial: func(ctx context.Context, d Dial) (net.Conn, error) {
		if first {
			first = false
			w.Datagram(memoryFlow(), []byte("second"), nil)
		}
		return hand(ctx, d)
	}}})
	w.Datagram(memoryFlow(), []byte("first"), nil)
	wantSent(t, one, "second", "first")
	select {
	case <-two.closed:
	default:
		t.Error("the unused socket is still open")
	}
	if got := w.CountConnections(); got.Sessions != 1 || len(w.sessions.sockets) != 1 {
		t.Errorf("got %+v and %d counted sockets, want 1 session and 1 socket", got, len(w.sessions.sockets))
	}
	w.EndAll()
	eventually(t, "no session and no socket is counted", func() bool {
		return len(w.sessions.sockets) == 0 && w.CountConnections().Sessions == 0
	})
}

// However long a busy machine takes to open a socket, the datagram is not lost: the timeout
// of connections does not apply.
func TestSocketsOfDatagramsHaveNoTimeout(t *testing.T) {
	t.Parallel()
	for protocol, want := range map[v1.Protocol]bool{v1.ProtocolUDP: false, v1.ProtocolTCP: true} {
		synctest.Test(t, func(t *testing.T) {
			socket := newFakeSocket()
			w := newFixture(t, Config{Hooks: Hooks{Dial: func(ctx context.Context, _ Dial) (net.Conn, error) {
				time.Sleep(time.Minute)
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				return socket, nil
			}}}, protocol)
			w.serveAt(memoryFrontend, memoryEndpoint)
			f := memoryFlow()
			f.Protocol = protocol
			d := w.decide(f)
			conn, _, err := w.connect(t.Context(), &d)
			if got := errors.Is(err, context.DeadlineExceeded); got != want {
				t.Errorf("%s: got %v and error %v, want a timeout: %v", protocol, conn, err, want)
			}
		})
	}
}

// A session that is used at the moment when it would end for silence is kept: otherwise the
// answer would be lost.
func TestUsedSessionsStay(t *testing.T) {
	t.Parallel()
	socket := newFakeSocket()
	w := newMemory(t, Config{Hooks: Hooks{Dial: dialInTurn(socket)}})
	w.Datagram(memoryFlow(), []byte("one"), nil)
	all := &w.sessions
	silent := w.now()
	all.mu.RLock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		all.closeSilent(silent)
	}()
	eventually(t, "the session is about to be ended", func() bool {
		if all.mu.TryRLock() {
			all.mu.RUnlock()
			return false
		}
		return true
	})
	all.byFlow[sessionKey{memoryClient, memoryFrontend}].used.Store(int64(silent) + 1) // as use does
	all.mu.RUnlock()
	<-done
	w.Datagram(memoryFlow(), []byte("two"), nil)
	wantSent(t, socket, "one", "two")
	if s := all.use(memoryFlow(), silent+time.Hour); s == nil || s.used.Load() != int64(silent+time.Hour) {
		t.Error("use did not update the time of last use")
	}
	all.closeSilent(silent + time.Hour)
	if s := all.use(memoryFlow(), 0); s != nil {
		t.Error("a silent session was kept")
	}
}

// What becomes of a session and of a second datagram after an error of the first datagram, or of waiting
// for answers: only refusals are failures of the endpoint, and a shortage loses a datagram.
func TestErrorsOfSessions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sending, answering error
		closed             bool     // the socket, after the first datagram
		first, second      []string // what the sockets send
		recorded           bool     // a failure of the endpoint
	}{
		"too large":                  {sending: syscall.EMSGSIZE, first: []string{"one", "two"}},
		"too large, later":           {answering: syscall.EMSGSIZE, first: []string{"one", "two"}},
		"no buffer":                  {sending: syscall.ENOBUFS, first: []string{"two"}},
		"not permitted":              {sending: syscall.EPERM, first: []string{"two"}},
		"full":                       {sending: syscall.EAGAIN, first: []string{"two"}},
		"refused":                    {sending: syscall.ECONNREFUSED, second: []string{"one", "two"}, recorded: true},
		"refused, later":             {answering: syscall.ECONNREFUSED, first: []string{"one"}, second: []string{"two"}, recorded: true},
		"not reachable, later":       {answering: syscall.EHOSTUNREACH, first: []string{"one"}, second: []string{"two"}, recorded: true},
		"no buffer for answers":      {answering: syscall.ENOBUFS, first: []string{"one"}, second: []string{"two"}},
		"no memory for answers":      {answering: syscall.ENOMEM, first: []string{"one"}, second: []string{"two"}},
		"the session has just ended": {closed: true, first: []string{"one"}, second: []string{"two"}},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := newFakeSocket(), newFakeSocket()
			if c.sending != nil {
				one.refusals = []error{c.sending}
			}
			w := newMemory(t, Config{Hooks: Hooks{Dial: dialInTurn(one, two)}})
			w.Datagram(memoryFlow(), []byte("one"), nil)
			if c.answering != nil {
				one.incoming <- c.answering
			}
			if c.closed {
				shut(one)
			}
			if c.answering != nil && c.second != nil {
				eventually(t, "the session has ended", func() bool { return w.CountConnections().Sessions == 0 })
			}
			w.Datagram(memoryFlow(), []byte("two"), nil)
			wantSent(t, one, c.first...)
			wantSent(t, two, c.second...)
			if got := w.failures.count.Load() != 0; got != c.recorded {
				t.Errorf("recorded failure: got %v, want %v", got, c.recorded)
			}
		})
	}
}

// scripted is a listener that fails with some errors, and is then closed.
type scripted []error

func (l *scripted) Receive([]byte) (int, Flow, error) {
	if len(*l) == 0 {
		return 0, Flow{}, net.ErrClosed
	}
	err := (*l)[0]
	*l = (*l)[1:]
	return 0, Flow{}, err
}

func (l *scripted) Reply(Flow, []byte) error { return nil }
func (l *scripted) Close() error             { return nil }

// An error about a single datagram neither delays the next ones nor counts as a fault of the
// listener.
func TestErrorsOfSingleDatagrams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, Config{}, v1.ProtocolUDP)
		w.ServePackets(&scripted{syscall.ECONNREFUSED, syscall.EMSGSIZE, syscall.ECONNREFUSED})
		synctest.Wait()
		if open, faults := w.tasks.listeners.Load(), w.CountConnections().Faults; open != 0 || faults != 0 {
			t.Errorf("after three such errors, and the end of the listener: got %d listeners and %d faults, want none", open, faults)
		}
		w.Close()
	})
}
