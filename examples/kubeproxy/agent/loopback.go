package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
)

// parseNodePorts returns where node ports answer. It warns of ranges of loopback addresses that select none.
func (c *config) parseNodePorts() (proxy.NodePortAddresses, error) {
	at, err := proxy.ParseNodePortAddresses(c.NodePortAddresses...)
	if err != nil {
		return at, fmt.Errorf("nodePortAddresses%w", err)
	}
	for _, p := range at.Loopback {
		if len((proxy.NodePortAddresses{Loopback: []netip.Prefix{p}}).LoopbackAddresses()) == 0 {
			c.warnings = append(c.warnings, fmt.Sprintf("nodePortAddresses: %v selects no address: name single loopback addresses, such as %v/32", p, p.Addr().Next()))
		}
	}
	return at, nil
}

// nodePortsOf returns where node ports answer in a mode.
func (c *config) nodePortsOf(mode string) proxy.NodePortAddresses {
	at := c.nodePorts
	if len(c.NodePortAddresses) == 0 && mode != nftablesMode {
		at.All = true // as in kube-proxy's modes iptables and ipvs
	}
	switch {
	case !c.servesLoopback(mode):
		// Health check node ports stay there, and a list of loopback addresses alone does not
		// become an empty one.
		at.Prefixes, at.Loopback = slices.Concat(at.Prefixes, at.Loopback), nil
	case mode == iptablesMode && containsLoopback(at):
		// As in kube-proxy, ranges include loopback addresses of IPv4, in this mode alone.
		at.Loopback = append([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, at.Loopback...)
		slices.SortFunc(at.Loopback, netip.Prefix.Compare)
		at.Loopback = slices.Compact(at.Loopback)
	}
	return at
}

// servesLoopback reports whether node ports answer at the loopback addresses that are named.
func (c *config) servesLoopback(mode string) bool {
	switch mode {
	case iptablesMode:
		return *c.IPTables.LocalhostNodePorts
	case nftablesMode:
		return c.enabled(localhostNodePortGate)
	}
	return true
}

// containsLoopback reports whether 127.0.0.1 is among all addresses, or in a range of others.
func containsLoopback(at proxy.NodePortAddresses) bool {
	usual := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	return at.All || slices.ContainsFunc(at.Prefixes, func(p netip.Prefix) bool { return p.Contains(usual) })
}

// loopback serves node ports at loopback addresses, beside the backend of the mode.
type loopback struct {
	agent   *instance
	runner  *proxy.Runner
	backend *userspace.Backend
	failed  *prometheus.CounterVec
}

// openLoopback returns what serves node ports at the loopback addresses of the agent; nil if no loopback address is
// selected. Only processes of the node notice if these are not served, so /healthz does not depend on them; the
// log, the metrics and the debug page do.
func (a *instance) openLoopback(source proxy.Source, registry prometheus.Registerer) (*loopback, error) {
	if len(a.tracker.NodePortAddresses.LoopbackAddresses()) == 0 {
		return nil, nil
	}
	backend, err := userspace.New(userspace.Options{Capture: userspace.Loopback})
	if err != nil {
		return nil, fmt.Errorf("node ports at loopback addresses: %w", err)
	}
	l := &loopback{agent: a, backend: backend}
	l.runner = &proxy.Runner{Source: source, Backend: backend, Observers: []proxy.Observer{{Synced: l.synced}}}
	if err := l.register(registry); err != nil {
		return nil, errors.Join(err, backend.Close())
	}
	return l, nil
}

// register registers the metrics: with kube-proxy's names in its mode that has them.
func (l *loopback) register(registry prometheus.Registerer) error {
	prefix := "vipkit_loopback_node_port_"
	if l.agent.mode == nftablesMode {
		prefix = "kubeproxy_nftables_localhost_nodeport_"
	}
	l.failed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "listener_creation_failures_total", Help: "Attempts to listen for a service port at loopback addresses that failed.",
	}, []string{"ip_family"})
	errs := []error{registry.Register(l.failed)}
	for _, f := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		l.failed.WithLabelValues(string(f))
		errs = append(errs, registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: prefix + "listeners", Help: "Sockets that listen at node ports at loopback addresses.",
			ConstLabels: prometheus.Labels{"ip_family": string(f)},
		}, func() float64 { return float64(l.backend.Listeners(f)) })))
	}
	return errors.Join(errs...)
}

// run serves until ctx ends.
func (l *loopback) run(ctx context.Context) {
	if l == nil {
		return
	}
	if err := l.runner.Run(ctx); err != nil {
		l.agent.log.Error(err, "node ports not served at loopback addresses")
	}
}

func (l *loopback) close() error {
	if l == nil {
		return nil
	}
	return l.backend.Close()
}

// synced handles a sync. The Runner tries again what was not served.
func (l *loopback) synced(s proxy.Sync) {
	limits := s.Refused.Problems()
	if s.Err != nil && s.Refused == nil {
		limits = []*proxy.Problem{{
			Kind: "Node", NamespacedName: types.NamespacedName{Name: l.agent.tracker.NodeName}, Field: "loopback addresses", Err: s.Err,
		}}
	}
	for port := range s.Refused {
		if port.Protocol != v1.ProtocolSCTP { // There are no sockets of SCTP, so none has failed.
			l.failed.WithLabelValues(string(port.Family)).Inc()
		}
	}
	l.agent.page.SetLimits(limits)
	l.agent.reported.loopback.Update(l.agent.log, "node port not served at loopback addresses", limits, func(p *proxy.Problem) ([]any, error) {
		return []any{"kind", p.Kind, "object", p.NamespacedName.String(), "field", p.Field}, p.Err
	})
}
