package host

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Frontends are the frontends of the snapshot: their addresses, and node ports at the
// addresses of the node.
func TestFrontends(t *testing.T) {
	t.Parallel()
	d := NewFrontends(func(netip.Addr) bool { return false })
	var last proxy.Snapshot
	for _, step := range []struct {
		next proxy.Snapshot
		want []string // of TCP
	}{
		{proxy.NewSnapshot(snapshots.Node("192.0.2.1"), snapshots.Port("web", "10.96.0.1:80 0.0.0.0:30000"), snapshots.Port("web/UDP", "10.96.0.2:80")), []string{"10.96.0.1:80", "192.0.2.1:30000"}},
		{proxy.NewSnapshot(snapshots.Node("192.0.2.2", "2001:db8::1"), snapshots.Port("web", "10.96.0.2:80 [::]:30000 0.0.0.0:30001")), []string{"10.96.0.2:80", "192.0.2.2:30001", "[2001:db8::1]:30000"}},
		{proxy.NewSnapshot(snapshots.Node("192.0.2.1", "192.0.2.2")), nil},
	} {
		d.Follow(last, step.next)
		last = step.next
		var got []string
		for _, at := range []string{
			"10.96.0.1:80", "10.96.0.2:80", "192.0.2.1:30000", "192.0.2.1:30001", "192.0.2.2:30000", "192.0.2.2:30001", "[2001:db8::1]:30000", "[2001:db8::1]:30001",
		} {
			if d.IsFrontend(v1.ProtocolTCP, netip.MustParseAddrPort(at)) {
				got = append(got, at)
			}
		}
		testenv.Same(t, step.want, got, "frontends")
	}
	if len(d.frontends) != 0 {
		t.Errorf("without Services: got frontends %v, want none", d.frontends)
	}
}

// Attempts to reach an endpoint that does not answer hold no threads, though their sockets belong to another
// namespace than that of the process.
func TestPendingDialsHoldNoThreads(t *testing.T) {
	const attempts = 40
	l := lab.New(t, lab.Host{Name: "node"}, lab.Host{
		Name: "silent", Uplink: "node", Addrs: "192.0.2.10/24", Gateway: "192.0.2.1/24",
		Rules: "table ip deny { chain in { type filter hook input priority 0; policy drop; }; }",
	})
	s := socketsIn(t, l.NS("node"))
	threads := func() int {
		all, err := os.ReadDir("/proc/self/task")
		testenv.NoError(t, err)
		return len(all)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var pending sync.WaitGroup
	defer pending.Wait()
	defer cancel()
	before := threads()
	for range attempts {
		made := make(chan struct{})
		d := net.Dialer{Control: func(string, string, syscall.RawConn) error { close(made); return nil }}
		pending.Go(func() {
			err := s.Dial(&d, func(by *net.Dialer) error {
				_, err := by.DialContext(ctx, "tcp", "192.0.2.10:80")
				return err
			})
			if ctx.Err() == nil {
				t.Errorf("got error %v, want the attempt to wait", err)
			}
		})
		<-made
	}
	if got := threads() - before; got > attempts/2 {
		t.Errorf("threads of %d pending attempts: got %d more, want a few", attempts, got)
	}
}

// socketsIn returns Sockets for a namespace.
func socketsIn(t *testing.T, ns *netns.NS) *Sockets {
	t.Helper()
	return netnstest.Open(t, ns, OpenSockets)
}

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }
