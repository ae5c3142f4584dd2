package agent

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestFlowsFollowATakeover has a sender that never pauses, whose flow is translated by rules
// of kube-proxy. When these were removed, its conntrack entry must be removed, too.
func TestFlowsFollowATakeover(t *testing.T) {
	t.Parallel()
	nft := netnstest.NFT(t)
	w := newWorld(t, "mode: nftables\n")
	dns, endpoints := service("dns", "10.96.0.20"), slice("dns", 5353)
	dns.Spec.Ports[0] = v1.ServicePort{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53}
	endpoints.Ports[0].Name, endpoints.Ports[0].Protocol = new("dns"), new(v1.ProtocolUDP)
	w.api.put("services", dns)
	w.api.put("endpointslices", endpoints)
	before := w.start()
	before.Await("msg=serving")
	before.Terminate(stopped)
	// The kernel runs later rules first. The endpoint of these does not exist any more.
	runIn(t, w.node.NS, nft, "add table ip kube-proxy; "+
		"add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100; }; "+
		"add rule ip kube-proxy nat-prerouting ip daddr 10.96.0.20 udp dport 53 dnat to 10.244.1.99:5353")
	answers := w.sender("10.96.0.20:53")
	p := w.start()
	p.Await("msg=serving")
	select {
	case <-answers:
	case <-time.After(patience):
		t.Errorf("no reply within %v after the start, want one", patience)
	}
	p.Terminate(stopped)
}

// sender sends datagrams from one port to an address, a thousand a second, until the
// test ends. The returned channel is closed with the first reply.
func (w *world) sender(to string) <-chan struct{} {
	w.t.Helper()
	socket, err := w.node.Client.Dial(w.t.Context(), "udp", to)
	testenv.NoError(w.t, err)
	answered, closed := make(chan struct{}), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-closed:
				return
			case <-time.After(time.Millisecond):
				_, _ = io.WriteString(socket, "?") // The next datagram repeats a refused one.
			}
		}
	})
	ended.Go(func() {
		report := sync.OnceFunc(func() { close(answered) })
		for {
			switch _, err := socket.Read(make([]byte, 16)); {
			case err == nil:
				report()
			case errors.Is(err, net.ErrClosed):
				return
			}
		}
	})
	w.t.Cleanup(func() {
		close(closed)
		_ = socket.Close() // An error does not matter.
		ended.Wait()
	})
	return answered
}
