package testenv

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

// Cost is what the tests of a package need most while they wait, and so how many of them run at
// once.
type Cost int

// The costs, from the smallest on.
const (
	Waiting    Cost = 16 // nothing: they wait for time or for each other
	Namespaces Cost = 8  // the kernel's work for network namespaces
	Processes  Cost = 4  // programs that work
	Files      Cost = 4  // file descriptors of this process, for flows
	Storms     Cost = 2  // traffic whose delays are judged
	// IPVS is the kernel's table of virtual servers, which namespaces share: while one changes, a
	// dump of another one repeats entries, or leaves some out (seen on Linux 6.1).
	IPVS Cost = 1
)

// Run runs the tests of a package and returns the exit status, which is not 0 if a test has
// failed or a goroutine has leaked. The flag -parallel takes precedence over the cost.
func Run(m *testing.M, c Cost) int {
	err := flag.Set("test.parallel", strconv.Itoa(int(c)))
	status := m.Run() // It parses the flags.
	if err = errors.Join(err, goleak.Find()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(status, 1)
	}
	return status
}
