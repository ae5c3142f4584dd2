package main

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// dial connects to the Service of the demo, until the test ends.
func (n network) dial(t *testing.T) *lab.Conn {
	t.Helper()
	c, err := lab.Dial(t.Context(), n.Client, "tcp", virtualIP)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	wantAnswer(t, c)
	return c
}

func wantAnswer(t *testing.T, c *lab.Conn) {
	t.Helper()
	if _, err := c.Ask(t.Context()); err != nil {
		t.Errorf("answer on an open connection: %v", err)
	}
}

// TestDrain checks that a program that gets a signal waits for its connections while its
// successor accepts new ones, and that it resets connections that do not end in time.
func TestDrain(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	begin := func(drain string) *agenttest.Program {
		p := n.start(t, flags("demo", "-backend", "userspace", "-drain", drain)...)
		p.Await("msg=sync", "full=true", "ports=1", "operations=")
		return p
	}
	p := begin("1h")
	c := n.dial(t)
	p.Signal(syscall.SIGTERM)
	p.Await("waiting for connections to end", "atMost=1h0m0s")
	wantAnswer(t, c)
	successor := begin("100ms")
	late := n.dial(t)
	wantAnswer(t, c)
	_ = c.Close()
	if status := p.Wait(); status != 0 || p.Count(stopped) != 1 || p.Count("resetting") != 0 {
		t.Errorf("after its connections have ended: got status %d, want 0, %q and no reset", status, stopped)
	}
	wantAnswer(t, late)
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
	n := newNetwork(t)
	p := n.start(t, flags("demo", "-backend", "userspace", "-drain", "1h", "-nodeport-addresses", "localhost")...)
	var c *lab.Conn
	for end := time.Now().Add(patience); c == nil; time.Sleep(10 * time.Millisecond) {
		var err error
		if c, err = lab.Dial(t.Context(), n.NS, "tcp", "127.0.0.1:30080"); err != nil && time.Now().After(end) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = c.Close() })
	wantAnswer(t, c)
	p.Signal(syscall.SIGTERM)
	p.Await("waiting for connections to end", "atMost=1h0m0s")
	wantAnswer(t, c)
	_ = c.Close()
	if status := p.Wait(); status != 0 || p.Count("resetting") != 0 {
		t.Errorf("after its connections have ended: got status %d, want 0 and no reset", status)
	}
}
