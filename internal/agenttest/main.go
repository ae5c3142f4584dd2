package agenttest

import (
	"io"
	"os"
)

// actVariable, in the environment, makes a test program run the agent.
const actVariable = "VIPKIT_TEST_ACT"

// Environ returns the environment of a process that runs the agent.
func Environ() []string { return append(os.Environ(), actVariable+"=1") }

// orphaned is the exit status of an agent whose test has ended.
const orphaned = 3

// Main is for TestMain. In a process with the environment [Environ] it runs the agent, with the
// arguments of the process, in any other one the tests. It returns the exit status. The agent
// ends with its test, in whatever way that ends: the test holds the other end of standard
// input.
func Main(agent func(args []string, stderr io.Writer) int, tests func() int) int {
	if os.Getenv(actVariable) == "" {
		return tests()
	}
	status := make(chan int, 2)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // returns when the test has ended
		status <- orphaned
	}()
	go func() { status <- agent(os.Args[1:], os.Stderr) }()
	return <-status
}
