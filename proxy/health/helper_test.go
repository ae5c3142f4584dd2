package health

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

const timeout = time.Minute

func key(name string) types.NamespacedName { return objects.Name("ns/" + name) }

func portName(name string, family v1.IPFamily) proxy.ServicePortName {
	return proxy.ServicePortName{NamespacedName: key(name), Port: "http", Protocol: v1.ProtocolTCP, Family: family}
}

// servicePort returns one port of a Service with a health check node port, and with ready
// endpoints on this node.
func servicePort(name string, family v1.IPFamily, checkPort uint16, addrs ...string) *proxy.ServicePort {
	p := &proxy.ServicePort{Name: portName(name, family), ExternalLocal: true, HealthCheckNodePort: checkPort}
	p.Local = snapshots.Endpoints(objects.Many(len(addrs), func(i int) string { return addrs[i] + " local" })...)
	return p
}

// atLoopback returns a node that serves node ports at loopback, for both families.
func atLoopback() *proxy.Node {
	return &proxy.Node{Name: "node-1", NodePorts: proxy.NodePortAddresses{Loopback: snapshots.Prefixes("127.0.0.1/32", "::1/128")}}
}

// watching returns a Server and its Observer, which the test calls in place of a Runner.
func watching(t *testing.T, o Options) (*Server, proxy.Observer) {
	t.Helper()
	s, err := New(o)
	testenv.NoError(t, err)
	r := s.Observer()
	testenv.NoError(t, r.Begin(&proxy.Runner{ResyncInterval: timeout / 2}))
	return s, r
}

// applied calls the Observer as a Runner does after a successful Apply.
func applied(r proxy.Observer, ports ...*proxy.ServicePort) {
	appliedAt(r, atLoopback(), ports...)
}

func appliedAt(r proxy.Observer, n *proxy.Node, ports ...*proxy.ServicePort) {
	s := proxy.NewSnapshot(n, ports...)
	r.Synced(proxy.Sync{Snapshot: s, Applied: s, Start: time.Now()})
}

// take calls the Observer as a Runner does before an Apply.
func take(_ *testing.T, r proxy.Observer) {
	r.Started(proxy.Sync{Snapshot: proxy.NewSnapshot(nil), Start: time.Now()})
}

func node(edits ...func(*v1.Node)) *v1.Node {
	n := objects.Node("node-1", "")
	for _, e := range edits {
		e(n)
	}
	return n
}

func taint(key string) func(*v1.Node) {
	return func(n *v1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoSchedule})
	}
}

// stamp returns a time as it is in responses.
func stamp(t time.Time) string { return fmt.Sprintf("%q", t.Format(time.RFC3339Nano)) }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
