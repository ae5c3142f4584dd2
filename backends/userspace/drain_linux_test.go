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
	"github.com/vipkit/vipkit/proxy"
)

// echoes reports whether a connection carries something there and back.
func echoes(c net.Conn) error {
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// drain begins to drain a backend, and gives what becomes of it.
func drain(ctx context.Context, b *userspace.Backend) <-chan error {
	done := make(chan error, 1)
	go func() { done <- b.Drain(ctx) }()
	return done
}

// A backend that drains lets its connections end, in their own time, while another one
// takes up what is new.
func TestDrainForASuccessor(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
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
				t.Fatalf("while its backend drains: %v", err)
			}
		}
		if got := first.Stats(); got.Accepted != 1 || got.Connections != 1 {
			t.Errorf("the backend that drains has accepted %d connections and has %d, want one", got.Accepted, got.Connections)
		}
		select {
		case err := <-done:
			t.Fatalf("it has drained, with error %v, and there is a connection", err)
		default:
		}
		_ = long.Close()
		if err := <-done; err != nil {
			t.Errorf("when the last connection has ended: got error %v", err)
		}
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		n.wantAnswer(t, one)
	})
}

// What has not ended in time is reset when the backend is closed.
func TestDrainEndsInTime(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
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
			t.Errorf("before the backend is closed: %v", err)
		}
		for what, err := range map[string]error{"Apply": b.Apply(t.Context(), snapshot(one), snapshot(two)), "Cleanup": b.Cleanup(t.Context())} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: got error %v, want %v", what, err, net.ErrClosed)
			}
		}
		if !b.Drifted(t.Context()) {
			t.Error("a backend that serves nobody says that all is as it should be")
		}
		done := drain(t.Context(), b) // it may be asked again
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := long.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("when it is closed: got error %v, want %v", err, syscall.ECONNRESET)
		}
		if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed while it drains: got error %v", err)
		}
		if err := b.Drain(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after it was closed: got error %v, want %v", err, net.ErrClosed)
		}
	})
}

// Drain waits also for a connection that was accepted and waits for a slot.
func TestDrainWaitsForQueuedConnections(t *testing.T) {
	n := newNetwork(t)
	n.serve(t, podServer)
	b := n.start(t, userspace.Options{Connections: 2})
	if err := b.Drain(t.Context()); err != nil {
		t.Errorf("before the first Apply: got error %v", err)
	}
	b = n.start(t, userspace.Options{Connections: 1})
	apply(t, b, snapshot(one))
	other := netip.MustParseAddr("10.244.1.20")
	if err := n.client.AddAddress("eth0", netip.PrefixFrom(other, 24)); err != nil {
		t.Fatal(err)
	}
	_, first := n.wantAnswer(t, one)
	waits, err := n.dialFrom(t, other)
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close() //nolint:errcheck // the test is over
	eventually(t, "the second has come in", func() bool { return b.Stats().Accepted == 2 })
	done := drain(t.Context(), b)
	_ = first.Close()
	if err := greeted(waits, podServer); err != nil {
		t.Errorf("who has come in before: %v", err)
	}
	_ = waits.Close()
	if err := <-done; err != nil {
		t.Errorf("got error %v", err)
	}
}
