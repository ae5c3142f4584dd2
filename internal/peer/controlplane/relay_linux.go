package controlplane

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// Relay passes connections to a listener on to those that dial makes, such as connections from a network
// namespace to an API server outside of it, until the test ends.
func Relay(t testing.TB, l net.Listener, dial func(ctx context.Context) (net.Conn, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return // The listener is closed.
			}
			all.Go(func() { splice(ctx, near, dial) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // An error does not matter.
		cancel()
		all.Wait()
	})
}

// splice forwards a connection until one of its sides or ctx ends.
func splice(ctx context.Context, near net.Conn, dial func(ctx context.Context) (net.Conn, error)) {
	defer func() { _ = near.Close() }()
	far, err := dial(ctx)
	if err != nil {
		return // The client sees that the connection is closed.
	}
	end := context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
	defer end()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(far, near)
		_, _ = near.Close(), far.Close()
	}()
	_, _ = io.Copy(near, far)
	_, _ = near.Close(), far.Close()
	<-done
}
