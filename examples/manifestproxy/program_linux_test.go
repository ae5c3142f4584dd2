package main

import (
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/agenttest"
)

const (
	// patience bounds every wait.
	patience = 2 * time.Minute
	// stopped is the last line of a program that ends in order.
	stopped = "stopped; the rules stay"
)

// start starts the program. It ends with the test at the latest.
func (n network) start(t *testing.T, flags ...string) *agenttest.Program {
	t.Helper()
	return agenttest.Start(t, n.NS, patience, agenttest.Command(t, flags...))
}

// wantRun runs the program to its end and checks its status and that its log
// has one line with all parts.
func (n network) wantRun(t *testing.T, flags []string, status int, parts ...string) *agenttest.Program {
	t.Helper()
	p := n.start(t, flags...)
	if got := p.Wait(); got != status {
		t.Errorf("the status is %d, wanted %d", got, status)
	}
	if got := p.Count(parts...); got != 1 {
		t.Errorf("%d lines with %q are logged, wanted one", got, parts)
	}
	return p
}
