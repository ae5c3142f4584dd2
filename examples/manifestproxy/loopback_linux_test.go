package main

import (
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestLoopback checks that node ports answer at loopback addresses, beside backends of the kernel and of
// the program, and that a port that another program has is in the log until it is free.
func TestLoopback(t *testing.T) {
	t.Parallel()
	const local, metrics = "127.0.0.1:30080", "127.0.0.1:9102"
	for _, backend := range []string{"nftables", "userspace"} {
		n := newNetwork(t)
		taken, err := n.Listen(t.Context(), "tcp", local)
		testenv.NoError(t, err)
		p := n.start(t, append(flags("demo", "-backend", backend, "-nodeport-addresses", "localhost"), "-metrics-bind-address", metrics)...)
		p.Await(`level=ERROR msg="node port not served at loopback addresses"`, "object=default/web", local)
		p.AwaitPage("http://"+metrics+"/debug/services", "Served with limits", local)
		testenv.NoError(t, taken.Close())
		p.Await(`level=INFO msg="node port not served at loopback addresses resolved"`, "object=default/web")
		on := *n.Node
		on.Client = n.NS
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if _, err := on.Ask(t.Context(), local); err == nil {
				break
			} else if time.Now().After(end) {
				t.Fatalf("%s: node port at %s: got error %v, want an answer", backend, local, err)
			}
		}
		p.Terminate(stopped)
	}
}
