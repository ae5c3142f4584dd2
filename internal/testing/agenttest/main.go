package agenttest

import (
	"io"
	"os"
)

// actVariable, in the environment, makes a test program run the agent.
const actVariable = "VIPKIT_TEST_ACT"

// Environ returns the environment of a process that runs the agent.
func Environ() []string { return append(os.Environ(), actVariable+"=1") }

// Main is for TestMain. In a process with the environment [Environ] it runs the agent, with the
// arguments of the process, in any other one the tests. It returns the exit status.
func Main(agent func(args []string, stderr io.Writer) int, tests func() int) int {
	if os.Getenv(actVariable) == "" {
		return tests()
	}
	return agent(os.Args[1:], os.Stderr)
}
