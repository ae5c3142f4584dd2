package userspace_test

import (
	"testing"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// ofKind sets the kind of all frontends of a snapshot.
func ofKind(s proxy.Snapshot, kind proxy.FrontendKind) proxy.Snapshot {
	return snapshots.EachWith(s, func(p *proxy.ServicePort) {
		for i := range p.Frontends {
			p.Frontends[i].Kind = kind
		}
	})
}

// After Cleanup, a program of the node gets connections to its port, which was a node port.
func TestCleanupFreesNodePorts(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.serve(t, podServer)
		const port, onNode = ":30100", "10.244.1.1:30100"
		n.at(n.node).serve(t, onNode)
		s := snapshot("0.0.0.0" + port)
		node := *s.Node()
		node.NodePorts.All = true
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, withNode(s, &node))
		n.wantAnswer(t, onNode)
		testenv.NoError(t, b.Cleanup(t.Context()))
		if server, _, _, err := n.ask(t, onNode); err != nil || server != onNode {
			t.Errorf("after Cleanup: got %q and error %v, want an answer of the program", server, err)
		}
	})
}

// Packets to a frontend with the action Pass reach the host that has the address.
func TestPassedFrontends(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.serve(t, podServer)
		n.serve(t, one)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, withAction(ofKind(snapshot(one), proxy.ExternalIP), proxy.Pass))
		if server, _, _, err := n.ask(t, one); err != nil || server != one {
			t.Errorf("got %q and error %v, want an answer of %s", server, err, one)
		}
	})
}
