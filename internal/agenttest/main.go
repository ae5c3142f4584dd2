package agenttest

import (
	"io"
	"os"
)

// actVariable in the environment makes a test program the agent itself.
const actVariable = "VIPKIT_TEST_ACT"

// orphaned is the status of an agent whose test has ended.
const orphaned = 3

// Main is for TestMain. In a process that [Start] has started it runs the agent, with
// the arguments of the process, and in any other one the tests; either gives
// the status to exit with. The agent ends with its test, however that ends: the test
// holds the other end of standard input.
func Main(agent func(args []string, stderr io.Writer) int, tests func() int) int {
	if os.Getenv(actVariable) == "" {
		return tests()
	}
	status := make(chan int, 2)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // However that ends, nobody is there any more.
		status <- orphaned
	}()
	go func() { status <- agent(os.Args[1:], os.Stderr) }()
	return <-status
}
