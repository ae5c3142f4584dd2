package agent

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(agenttest.Main(runAgent, func() int { return netnstest.Main(m, testenv.Processes) }))
}

func runAgent(args []string, stderr io.Writer) int { return Main(args, os.Stdout, stderr) }

// need reports that the test cannot run if a program is missing.
func need(t *testing.T, program string) {
	t.Helper()
	netnstest.Program(t, program)
}

const (
	// patience bounds every wait.
	patience = 2 * time.Minute
	// stopped is in the last line of a program that ends without error.
	stopped = "stopped; the rules stay"
)

// start starts the program. It ends with the test at the latest.
func start(t *testing.T, ns *netns.NS, flags ...string) *agenttest.Program {
	t.Helper()
	return agenttest.Start(t, ns, patience, agenttest.Command(t, flags...))
}

// runIn runs another program in a network namespace and gives what it prints.
func runIn(t *testing.T, ns *netns.NS, args ...string) string {
	t.Helper()
	out, err := netnstest.Run(t, ns, "", args[0], args[1:]...)
	testenv.NoError(t, err)
	return out
}
