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

// scripted is a socket of UDP, to which what comes is as the test says.
type scripted struct {
	net.Conn // nil: nothing else is asked of it

	mu       sync.Mutex
	refusals []error // of the next datagrams
	sent     []string
	incoming chan error // nil: an answer
	closed   chan struct{}
	close    func()
}

func newScripted(refusals ...error) *scripted {
	s := &scripted{refusals: refusals, incoming: make(chan error), closed: make(chan struct{})}
	s.close = sync.OnceFunc(func() { close(s.closed) })
	return s
}

func (s *scripted) Write(b []byte) (int, error) {
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

func (s *scripted) Read([]byte) (int, error) {
	select {
	case err := <-s.incoming:
		return 0, err
	case <-s.closed:
		return 0, net.ErrClosed
	}
}

func (s *scripted) Close() error {
	s.close()
	return nil
}

func (s *scripted) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.sent)
}

// handsOut is a dialer that gives sockets in turn.
func handsOut(all ...*scripted) func(context.Context, Dial) (net.Conn, error) {
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

// newMemory gives an engine that sends all to one endpoint.
func newMemory(t *testing.T, c Config) *world {
	t.Helper()
	w := newWorld(t, c, v1.ProtocolUDP)
	w.serveAt(memoryFrontend, memoryEndpoint)
	return w
}

// wantSent wants a socket to have sent datagrams.
func wantSent(t *testing.T, s *scripted, want ...string) {
	t.Helper()
	if got := s.got(); !slices.Equal(got, want) {
		t.Errorf("the endpoint got %q, want %q", got, want)
	}
}

// While the socket of a session is made, another datagram of the same flow may come
// in by another door. Both get there, by one session.
func TestTwoFirstDatagrams(t *testing.T) {
	one, two := newScripted(), newScripted()
	var w *world
	first := true
	hand := handsOut(one, two)
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
		t.Error("the socket that was made in vain is open")
	}
	if got := w.Stats(); got.Sessions != 1 || w.sessions.sockets.taken.Load() != 1 {
		t.Errorf("got %+v, and %d sockets counted, want one", got, w.sessions.sockets.taken.Load())
	}
	w.EndAll()
	eventually(t, "nothing is counted any more", func() bool {
		return w.sessions.sockets.taken.Load() == 0 && w.Stats().Sessions == 0
	})
}

// However long a busy machine takes to make a socket, the datagram is not lost. It
// would be if the patience for connections counted.
func TestSocketsOfDatagramsTakeTheirTime(t *testing.T) {
	for protocol, want := range map[v1.Protocol]bool{v1.ProtocolUDP: false, v1.ProtocolTCP: true} {
		synctest.Test(t, func(t *testing.T) {
			socket := newScripted()
			w := newWorld(t, Config{Hooks: Hooks{Dial: func(ctx context.Context, _ Dial) (net.Conn, error) {
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
				t.Errorf("%s: got %v and error %v, want it to be too late: %v", protocol, conn, err, want)
			}
		})
	}
}

// A session that is used in the moment when it is to end for silence stays: the
// answer would be lost.
func TestUsedSessionsStay(t *testing.T) {
	socket := newScripted()
	w := newMemory(t, Config{Hooks: Hooks{Dial: handsOut(socket)}})
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
		t.Error("to find a session is not to use it")
	}
	all.closeSilent(silent + time.Hour)
	if s := all.use(memoryFlow(), 0); s != nil {
		t.Error("a session that has been silent stays")
	}
}

// That a datagram is too large for the way says nothing of the endpoint: the session
// stays, and the next datagram gets there.
func TestTooLargeDatagramsAreNoRefusal(t *testing.T) {
	socket := newScripted(syscall.EMSGSIZE)
	w := newMemory(t, Config{Hooks: Hooks{Dial: handsOut(socket)}})
	answers := make(replies, 1)
	w.Datagram(memoryFlow(), []byte("one"), answers) // it was an earlier one that was too large
	socket.incoming <- syscall.EMSGSIZE
	socket.incoming <- nil
	<-answers
	w.Datagram(memoryFlow(), []byte("two"), answers)
	wantSent(t, socket, "one", "two")
	if got := w.Stats().Sessions; got != 1 || w.suspects.count.Load() != 0 {
		t.Errorf("got %d sessions and %d suspects, want one session and no suspect", got, w.suspects.count.Load())
	}
}

// An endpoint that refuses is a suspect, and the datagram goes to another one.
func TestRefusalsEndSessions(t *testing.T) {
	for name, refuse := range map[string]func(w *world, s *scripted){
		"when sending": func(_ *world, s *scripted) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.refusals = []error{syscall.ECONNREFUSED}
		},
		"when answering": func(w *world, s *scripted) {
			s.incoming <- syscall.ECONNREFUSED
			eventually(t, "the session has ended", func() bool { return w.Stats().Sessions == 0 })
		},
		"by ending": func(_ *world, s *scripted) { shut(s) },
	} {
		t.Run(name, func(t *testing.T) {
			one, two := newScripted(), newScripted()
			w := newMemory(t, Config{Hooks: Hooks{Dial: handsOut(one, two)}})
			w.Datagram(memoryFlow(), []byte("one"), nil)
			refuse(w, one)
			w.Datagram(memoryFlow(), []byte("two"), nil)
			wantSent(t, one, "one")
			wantSent(t, two, "two")
			if got, want := w.suspects.count.Load() != 0, name != "by ending"; got != want {
				t.Errorf("is the endpoint a suspect: %v, want %v", got, want)
			}
		})
	}
}

// What this side is short of ends no session.
func TestShortageEndsNoSession(t *testing.T) {
	for _, err := range []error{syscall.ENOBUFS, syscall.EPERM, syscall.EAGAIN} {
		socket := newScripted(err)
		w := newMemory(t, Config{Hooks: Hooks{Dial: handsOut(socket)}})
		w.Datagram(memoryFlow(), []byte("one"), nil)
		w.Datagram(memoryFlow(), []byte("two"), nil)
		wantSent(t, socket, "two")
		if w.suspects.count.Load() != 0 {
			t.Errorf("%v: the endpoint is a suspect", err)
		}
	}
}
