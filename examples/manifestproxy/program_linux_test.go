package main

import (
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
)

const (
	// patience bounds every wait.
	patience = 2 * time.Minute
	// stopped is in the last line of a program that ends without error.
	stopped = "stopped; the rules stay"
)

// start starts the program. It ends with the test at the latest.
func (n network) start(t *testing.T, flags ...string) *agenttest.Program {
	t.Helper()
	return agenttest.Start(t, n.NS, patience, agenttest.Command(t, flags...))
}

// wantRun runs the program to its end. It checks the status, and that the log has one line
// with all parts.
func (n network) wantRun(t *testing.T, flags []string, status int, parts ...string) *agenttest.Program {
	t.Helper()
	p := n.start(t, flags...)
	if got := p.Wait(); got != status {
		t.Errorf("status: got %d, want %d", got, status)
	}
	if got := p.Count(parts...); got != 1 {
		t.Errorf("log lines with %q: got %d, want one", parts, got)
	}
	return p
}
