package main

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/agenttest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// echoes serves connections that stay open and echo their data.
func (n network) echoes(t *testing.T, at string) {
	t.Helper()
	l, err := n.Pods.Listen(t.Context(), "tcp", at)
	testenv.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // The listener has been closed.
			}
			served.Go(func() {
				_, _ = io.Copy(c, c) // until the client ends it
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		served.Wait()
	})
}

// dial connects to the Service of the demo.
func (n network) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := n.Client.Dial(t.Context(), "tcp", virtualIP)
	testenv.NoError(t, err)
	return use(t, c)
}

// use checks that a new connection echoes. It stays open until the test ends.
func use(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	wantEcho(t, c)
	return c
}

func wantEcho(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := c.Write([]byte("x"))
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	if err != nil {
		t.Errorf("echo on an open connection: %v", err)
	}
}

// TestDrain checks that a program that gets a signal waits for its connections while its
// successor accepts new ones, and that it resets connections that do not end in time.
func TestDrain(t *testing.T) {
	t.Parallel()
	n := network{agenttest.NewNode(t)}
	n.echoes(t, endpoint1)
	n.echoes(t, endpoint2)
	begin := func(drain string) *agenttest.Program {
		p := n.start(t, flags("demo", "-backend", "userspace", "-drain", drain)...)
		p.Await("msg=sync", "full=true", "ports=1", "operations=")
		return p
	}
	p := begin("1h")
	c := n.dial(t)
	p.Signal(syscall.SIGTERM)
	p.Await("waiting for connections to end", "atMost=1h0m0s")
	wantEcho(t, c)
	successor := begin("100ms")
	late := n.dial(t)
	wantEcho(t, c)
	_ = c.Close()
	if status := p.Wait(); status != 0 || p.Count(stopped) != 1 || p.Count("resetting") != 0 {
		t.Errorf("after its connections have ended: got status %d, want 0, %q and no reset", status, stopped)
	}
	wantEcho(t, late)
	successor.Terminate(stopped)
	if successor.Count("resetting remaining connections") != 1 {
		t.Error("log: got no line about a reset of connections, want one")
	}
	if _, err := late.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want %v", err, syscall.ECONNRESET)
	}

	p = begin("1h")
	c = n.dial(t)
	p.Signal(syscall.SIGTERM)
	p.Await("waiting for connections to end")
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 || p.Count("resetting remaining connections") != 1 {
		t.Errorf("after a second signal: got status %d, want 0 and a reset of connections", status)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got error %v, want %v", err, syscall.ECONNRESET)
	}
	n.wantRun(t, []string{"-cleanup", "-backend", "userspace"}, 0, "all rules are removed")
}

// TestDrainLoopback checks that connections to node ports at loopback addresses are waited for, too.
func TestDrainLoopback(t *testing.T) {
	t.Parallel()
	n := network{agenttest.NewNode(t)}
	n.echoes(t, endpoint1)
	n.echoes(t, endpoint2)
	p := n.start(t, flags("demo", "-backend", "userspace", "-drain", "1h", "-nodeport-addresses", "localhost")...)
	var c net.Conn
	for end := time.Now().Add(patience); c == nil; time.Sleep(10 * time.Millisecond) {
		var err error
		if c, err = n.NS.Dial(t.Context(), "tcp", "127.0.0.1:30080"); err != nil && time.Now().After(end) {
			t.Fatal(err)
		}
	}
	use(t, c)
	p.Signal(syscall.SIGTERM)
	p.Await("waiting for connections to end", "atMost=1h0m0s")
	wantEcho(t, c)
	_ = c.Close()
	if status := p.Wait(); status != 0 || p.Count("resetting") != 0 {
		t.Errorf("after its connections have ended: got status %d, want 0 and no reset", status)
	}
}
