//go:build linux

package agenttest

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(Main(agent, func() int { return netnstest.Main(m, testenv.Namespaces) }))
}

// agent is the agent of these tests. It runs until SIGTERM, unless its argument says otherwise.
func agent(args []string, stderr io.Writer) int {
	say := func(text string) { _, _ = fmt.Fprintln(stderr, text) } // A test notices a missing line.
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	say("msg=ready part=1")
	switch args[0] {
	case "0":
		return 0
	case "7":
		say("dying")
		<-terminate
		return 7
	case "stubborn":
		select {}
	case "page":
		l, err := net.Listen("tcp", pageAddress)
		if err != nil {
			say(err.Error())
			return 1
		}
		say("msg=later part=2")
		go func() { _ = http.Serve(l, http.NotFoundHandler()) }() // ends with the process
	}
	<-terminate
	say("all is well")
	return 0
}

const pageAddress = "127.0.0.1:8080"
