package e2e_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == containerCommand {
		fmt.Fprintln(os.Stderr, becomeContainer(os.Args[2]))
		os.Exit(1)
	}
	os.Exit(netnstest.Main(m, testenv.Processes))
}
