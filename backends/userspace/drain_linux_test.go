package userspace_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// echoes sends a byte, and returns an error if it is not echoed.
func echoes(c net.Conn) error {
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
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
		n.serve(t, podServer)
		first, second := n.start(t, userspace.Options{Capture: c}), n.start(t, userspace.Options{Capture: c})
		apply(t, first, snapshot(one))
		_, long := n.wantAnswer(t, one)
		done := drain(t.Context(), first)
		eventually(t, "the successor can begin", func() bool {
			return second.Apply(t.Context(), proxy.Snapshot{}, snapshot(one)) == nil
		})
		for range 20 {
			_, conn := n.wantAnswer(t, one)
			_ = conn.Close()
			if err := echoes(long); err != nil {
				t.Fatalf("a connection of the draining backend: got error %v, want none", err)
			}
		}
		if got := first.Stats(); got.Accepted != 1 || got.Connections != 1 {
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
		testenv.NoError(t, first.Close())
		n.wantAnswer(t, one)
	})
}

// Connections that have not ended in time are reset when the backend is closed.
func TestDrainEndsInTime(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.serve(t, podServer)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, snapshot(one))
		_, long := n.wantAnswer(t, one)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := b.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
		}
		if err := echoes(long); err != nil {
			t.Errorf("before the backend is closed: got error %v, want none", err)
		}
		for what, err := range map[string]error{"Apply": b.Apply(t.Context(), snapshot(one), snapshot(two)), "Cleanup": b.Cleanup(t.Context())} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: got error %v, want %v", what, err, net.ErrClosed)
			}
		}
		if !b.Drifted(t.Context()) {
			t.Error("Drifted after Drain: got false, want true")
		}
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
	})
}

// Drain waits also for a connection that was accepted and waits for a slot.
func TestDrainWaitsForQueuedConnections(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	b := n.start(t, userspace.Options{Connections: 2})
	if err := b.Drain(t.Context()); err != nil {
		t.Errorf("Drain before the first Apply: got error %v, want none", err)
	}
	b = n.start(t, userspace.Options{Connections: 1})
	apply(t, b, snapshot(one))
	other := netip.MustParseAddr("10.244.1.20")
	testenv.NoError(t, n.client.AddAddress("eth0", netip.PrefixFrom(other, 24)))
	_, first := n.wantAnswer(t, one)
	waits, err := n.dialFrom(t, other)
	testenv.NoError(t, err)
	defer waits.Close() //nolint:errcheck // the test is over
	eventually(t, "the second connection was accepted", func() bool { return b.Stats().Accepted == 2 })
	done := drain(t.Context(), b)
	_ = first.Close()
	if err := greeted(waits, podServer); err != nil {
		t.Errorf("the connection that was accepted before: got error %v, want an answer", err)
	}
	_ = waits.Close()
	if err := <-done; err != nil {
		t.Errorf("Drain: got error %v, want none", err)
	}
}
