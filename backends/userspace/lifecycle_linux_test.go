package userspace_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A closed backend leaves no descriptor open, also after Apply has failed, and after Cleanup.
func TestCloseFreesDescriptors(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		// The garbage collector must not close descriptors that the backend has lost.
		runtime.GC()
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		const times = 10
		before := testenv.OpenFiles(t)
		for range times {
			n.useAndClose(t, c)
		}
		eventually(t, "all descriptors are closed", func() bool { return testenv.OpenFiles(t) < before+times })
	})
}

// useAndClose calls the methods of a backend, and closes it.
func (n network) useAndClose(t *testing.T, c userspace.Capture) {
	t.Helper()
	b := n.start(t, userspace.Options{Capture: c})
	taken, err := n.node().ListenPacket(t.Context(), "udp4", "0.0.0.0:16421")
	testenv.NoError(t, err)
	if err := b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("with the port in use: got error %v, want %v", err, syscall.EADDRINUSE)
	}
	testenv.NoError(t, taken.Close())
	apply(t, b, snapshot(one))
	testenv.NoError(t, b.Cleanup(t.Context()))
	if !b.Abilities().Drifted(t.Context()) {
		t.Error("Drifted after Cleanup: got false, want true")
	}
	apply(t, b, snapshot(one))
	testenv.NoError(t, b.Close()) // The end of the test closes it again, which is no error.
	wantClosed(t, b)
}

// wantClosed checks that a backend applies nothing more.
func wantClosed(t *testing.T, b *userspace.Backend) {
	t.Helper()
	if !b.Abilities().Drifted(t.Context()) {
		t.Error("Drifted of a closed backend: got false, want true")
	}
	for what, err := range map[string]error{"Apply": b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one)), "Cleanup": b.Cleanup(t.Context())} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: got error %v, want %v", what, err, net.ErrClosed)
		}
	}
}

// If the context has ended before Apply, Apply opens no listener, so that another backend can.
func TestCancelledApplyOpensNoListener(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.start(t, userspace.Options{}).Apply(ctx, proxy.Snapshot{}, snapshot(one)); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	apply(t, n.start(t, userspace.Options{}), snapshot(one))
	n.wantAnswer(t, one)
}

// Changes of the caller's options after New have no effect. A service port for SCTP of a family that is not served
// is no error.
func TestOptionsAreCopied(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	families := []v1.IPFamily{v1.IPv4Protocol}
	b := n.start(t, userspace.Options{Families: families})
	families[0] = v1.IPv6Protocol
	apply(t, b, services(web(one), snapshots.With(web(service6), ofProtocol(v1.ProtocolSCTP))))
	n.wantAnswer(t, one)
}

// faulty returns a backend whose commits pass through the function that the pointer refers to.
func (n network) faulty(t *testing.T, c userspace.Capture, around *func(commit func() error) error) *userspace.Backend {
	t.Helper()
	return netnstest.Open(t, n.node(), func() (*userspace.Backend, error) {
		return userspace.NewFaulty(userspace.Options{Capture: c}, func(commit func() error) error { return (*around)(commit) })
	})
}

// The engine serves the new snapshot before the commit is over, and the old one after a commit
// has failed.
func TestServedSnapshotDuringApply(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		broken := errors.New("broken")
		fails := func(func() error) error { return broken }
		around := func(commit func() error) error {
			err := commit()
			n.wantAnswer(t, one) // before the commit is over
			return err
		}
		b := n.faulty(t, c, &around)
		first := snapshot(one)
		apply(t, b, first)

		around = fails
		next := services(web(one+" "+two, otherPod))
		node := theNode()
		node.LocalTraffic.Interface = "nobody"
		for _, next := range []proxy.Snapshot{next, proxy.NewSnapshot(node, web(one+" "+two, otherPod))} { // a port, and the node
			if err := b.Apply(t.Context(), first, next); !errors.Is(err, broken) {
				t.Errorf("got error %v, want %v", err, broken)
			}
			n.wantAnswer(t, one)
		}

		around = func(commit func() error) error { return errors.Join(commit(), proxy.ErrDataplaneLost) }
		if err := b.Apply(t.Context(), first, next); !errors.Is(err, proxy.ErrDataplaneLost) {
			t.Errorf("got error %v, want %v", err, proxy.ErrDataplaneLost)
		}
		n.wantServer(t, two, otherPod)
	})
}

// drain begins to drain a backend. The channel gets the result.
func drain(ctx context.Context, b *userspace.Backend) <-chan error {
	done := make(chan error, 1)
	go func() { done <- b.Drain(ctx) }()
	return done
}

// A draining backend keeps its connections until they end, while another one serves new ones.
func TestDrainForASuccessor(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		first, second := n.start(t, userspace.Options{Capture: c}), n.start(t, userspace.Options{Capture: c})
		apply(t, first, snapshot(one))
		_, long := n.wantAnswer(t, one)
		done, also := drain(t.Context(), first), drain(t.Context(), first)
		eventually(t, "the successor can begin", func() bool {
			return second.Apply(t.Context(), proxy.Snapshot{}, snapshot(one)) == nil
		})
		for range 20 {
			_, conn := n.wantAnswer(t, one)
			_ = conn.Close()
			if _, err := long.Ask(t.Context()); err != nil {
				t.Fatalf("a connection of the draining backend: got error %v, want none", err)
			}
		}
		if got := first.Abilities().CountConnections(); got.Accepted != 1 || got.Connections != 1 {
			t.Errorf("the draining backend: got %d accepted connections and %d open, want 1 each", got.Accepted, got.Connections)
		}
		select {
		case err := <-done:
			t.Fatalf("Drain has returned, with error %v, and there is a connection", err)
		default:
		}
		_ = long.Close()
		if err := <-done; err != nil {
			t.Errorf("after the last connection has ended: got error %v, want none", err)
		}
		testenv.NoError(t, <-also)
		testenv.NoError(t, first.Close())
		n.wantAnswer(t, one)
	})
}

// Connections that have not ended in time are reset when the backend is closed.
func TestDrainEndsInTime(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.start(t, userspace.Options{})
	apply(t, b, snapshot(one))
	_, long := n.wantAnswer(t, one)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := b.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	if _, err := long.Ask(t.Context()); err != nil {
		t.Errorf("before the backend is closed: got error %v, want none", err)
	}
	wantClosed(t, b)
	done := drain(t.Context(), b) // Drain may be called again
	testenv.NoError(t, b.Close())
	if _, err := long.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection after Close: got error %v, want %v", err, syscall.ECONNRESET)
	}
	if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("Drain during Close: got error %v, want none or %v", err, net.ErrClosed)
	}
	if err := b.Drain(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Drain after Close: got error %v, want %v", err, net.ErrClosed)
	}
}

// Drain waits also for a connection that was accepted and waits for a slot.
func TestDrainWaitsForQueuedConnections(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	b := n.start(t, userspace.Options{Connections: 2})
	if err := b.Drain(t.Context()); err != nil {
		t.Errorf("Drain before the first Apply: got error %v, want none", err)
	}
	b = n.start(t, userspace.Options{Connections: 1})
	apply(t, b, snapshot(one))
	other := netip.MustParsePrefix("10.244.1.20/24")
	testenv.NoError(t, n.NS("client").AddAddress("eth0", other))
	_, first := n.wantAnswer(t, one)
	waits, err := n.dial(t, "tcp", netip.AddrPortFrom(other.Addr(), 0), one)
	testenv.NoError(t, err)
	eventually(t, "the second connection was accepted", func() bool { return b.Abilities().CountConnections().Accepted == 2 })
	done := drain(t.Context(), b)
	_ = first.Close()
	if _, err := waits.Ask(t.Context()); err != nil {
		t.Errorf("the connection that was accepted before: got error %v, want an answer", err)
	}
	_ = waits.Close()
	if err := <-done; err != nil {
		t.Errorf("Drain: got error %v, want none", err)
	}
}
