package health

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

const timeout = time.Minute

func key(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }

func portName(name string, family v1.IPFamily) proxy.ServicePortName {
	return proxy.ServicePortName{NamespacedName: key(name), Port: "http", Protocol: v1.ProtocolTCP, Family: family}
}

// servicePort is one port of a Service with a health check node port, and with
// ready endpoints on this node.
func servicePort(name string, family v1.IPFamily, checkPort uint16, addrs ...string) *proxy.ServicePort {
	p := &proxy.ServicePort{Name: portName(name, family), ExternalLocal: true, HealthCheckNodePort: checkPort}
	for _, a := range addrs {
		p.Local = append(p.Local, &endpoints.Endpoint{Addr: netip.AddrPortFrom(netip.MustParseAddr(a), 8080), Ready: true, Serving: true, Local: true})
	}
	return p
}

// atLoopback is a node whose node ports answer at loopback, for both families.
func atLoopback() *proxy.Node {
	return &proxy.Node{Name: "node-1", NodePorts: proxy.NodePortAddresses{
		Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("::1/128")},
	}}
}

// watching gives a Server, and a Runner that it follows and that the test
// itself plays.
func watching(t *testing.T, o Options) (*Server, *proxy.Runner) {
	t.Helper()
	s := New(o)
	r := &proxy.Runner{Source: snapshots{}, ResyncInterval: timeout / 2}
	if err := s.Watch(r); err != nil {
		t.Fatal(err)
	}
	return s, r
}

// snapshots is a source that always has one.
type snapshots struct{}

func (snapshots) Next(context.Context, proxy.Snapshot) (proxy.Snapshot, error) {
	return proxy.NewSnapshot(nil), nil
}

// applied plays that a Runner has made the dataplane as a snapshot says.
func applied(r *proxy.Runner, ports ...*proxy.ServicePort) {
	appliedAt(r, atLoopback(), ports...)
}

func appliedAt(r *proxy.Runner, n *proxy.Node, ports ...*proxy.ServicePort) {
	s := proxy.NewSnapshot(n, ports...)
	r.Observe(proxy.Sync{Snapshot: s, Applied: s, Start: time.Now()})
}

// take plays that a Runner takes a snapshot to program it.
func take(t *testing.T, r *proxy.Runner) {
	t.Helper()
	if _, err := r.Source.Next(t.Context(), proxy.Snapshot{}); err != nil {
		t.Fatal(err)
	}
}

func node(edits ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{}
	n.Name = "node-1"
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

// stamp gives a time as it stands in answers.
func stamp(t time.Time) string { return fmt.Sprintf("%q", t.Format(time.RFC3339Nano)) }
