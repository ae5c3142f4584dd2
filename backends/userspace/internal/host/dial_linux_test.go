package host

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

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
