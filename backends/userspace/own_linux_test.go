package userspace_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Packets of a program of the node are captured, even if they have one property of the
// backend's own packets: the source port, or a transparent socket.
func TestProgramsOfTheNodeAreCaptured(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]net.Dialer{
		"by port":   {LocalAddr: &net.TCPAddr{Port: 20_000}},
		"by socket": {LocalAddr: &net.TCPAddr{Port: 40_000}, Control: transparent},
		// The ports next to the backend's range.
		"before it": {LocalAddr: &net.TCPAddr{Port: 10_239}, Control: transparent},
		"after it":  {LocalAddr: &net.TCPAddr{Port: 30_240}, Control: transparent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			n.serve(t, podServer)
			n.serve(t, one)
			apply(t, n.start(t, userspace.Options{}), snapshot(one))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var c net.Conn
			if err := n.node.Do(func() (err error) {
				c, err = d.DialContext(ctx, "tcp4", one)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer c.Close() //nolint:errcheck // the test is over
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			buf := make([]byte, 100)
			size, err := c.Read(buf)
			if got := string(buf[:size]); err != nil || !strings.HasPrefix(got, podServer+" ") {
				t.Errorf("got %q and error %v, want an answer of %s", got, err, podServer)
			}
		})
	}
}

// The backend's own packets are not captured, even if the endpoint is a frontend, in a pod or
// on the node.
func TestEndpointsMayBeFrontends(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	const onNode = "10.244.2.1:8081"
	for at, where := range map[string]*netns.NS{two: n.pod, onNode: n.node} {
		t.Run(at, func(t *testing.T) {
			n.at(where).serve(t, at)
			apply(t, n.start(t, userspace.Options{}), both(withEndpoint(snapshot(one), at), snapshot(at)))
			if got, err := n.greeting(t, one, 0); err != nil || !strings.HasPrefix(got, at+" ") {
				t.Errorf("got %q and error %v, want an answer of %s itself", got, err, at)
			}
		})
	}
}

// While no backend runs, datagrams for a Service are dropped: they reach no program of the
// node that listens at every address, and are not refused.
func TestDatagramsAreDroppedWithoutBackend(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	host, err := n.node.ListenPacket(t.Context(), "udp", "0.0.0.0:53")
	testenv.NoError(t, err)
	defer host.Close() //nolint:errcheck // the test is over
	b := n.start(t, userspace.Options{})
	apply(t, b, names("10.96.0.1:53"))
	testenv.NoError(t, b.Close())
	for _, to := range []string{"10.96.0.1:53", "10.244.1.1:53"} { // the second is the node's own
		c, err := n.client.Dial(t.Context(), "udp", to)
		testenv.NoError(t, err)
		defer c.Close() //nolint:errcheck // the test is over
		if _, err := c.Write([]byte(to)); err != nil {
			t.Fatal(err)
		}
	}
	wantDatagram(t, host, "10.244.1.1:53")
}
