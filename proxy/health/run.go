package health

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// refreshInterval is how often Run reads the addresses of the machine.
const refreshInterval = 10 * time.Second

// Run serves until ctx ends. Then it waits for replies that are being written, for a
// second at most, and returns when everything is closed. Only one Run of a Server may be
// active.
func (s *Server) Run(ctx context.Context) {
	s.run(ctx, &net.ListenConfig{}, machineAddresses)
}

// listener opens sockets; [net.ListenConfig] is one.
type listener interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
}

func (s *Server) run(ctx context.Context, l listener, addresses func() ([]netip.Addr, error)) {
	r := &running{server: s, addresses: addresses, servers: newCheckServers(l, s.report, descriptors())}
	defer r.servers.close()
	if s.options.Address != "" {
		r.servers.set(types.NamespacedName{}, s, []hostPort{{"tcp", s.options.Address}})
	}
	for address, h := range s.options.Pages {
		if h == nil {
			h = http.NotFoundHandler() // For nil, a server would serve http.DefaultServeMux.
		}
		r.servers.set(types.NamespacedName{Name: address}, h, []hostPort{{"tcp", address}})
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		r.update()
		// All sockets are closed before any is opened, so that Services can swap their ports.
		wait := refreshInterval
		if due := r.servers.open(ctx); !due.IsZero() {
			wait = min(wait, max(0, time.Until(due)))
		}
		timer.Reset(wait)
	}
}

// report logs that a port is not served, or, without an error, is served again or not needed any more.
func (s *Server) report(name types.NamespacedName, err error) {
	at := cmp.Or(strings.TrimPrefix(name.String(), "/"), "healthz")
	if err != nil {
		s.options.Logger.Error(err, "HTTP server not listening", "at", at)
	} else {
		s.options.Logger.Info("HTTP server problem resolved", "at", at)
	}
	if s.options.Report != nil {
		s.options.Report(name, err)
	}
}

// running is the state of Run.
type running struct {
	server    *Server
	addresses func() ([]netip.Addr, error)
	servers   *checkServers
	ports     map[types.NamespacedName]uint16
	node      *proxy.Node
	hosts     []hostPort // addresses without a port
	refreshed time.Time
}

// update sets the addresses of all Services that have a health check node port, and removes
// the others.
func (r *running) update() {
	ports, node := r.server.checkPorts()
	all := false
	if !node.Equal(r.node) || time.Since(r.refreshed) >= refreshInterval {
		r.node = node
		all = r.refreshAddresses()
	}
	for name := range r.ports {
		if _, ok := ports[name]; !ok {
			if x := r.servers.byName[name]; x != nil {
				r.servers.record(name, x, nil) // Nothing is missing any more.
			}
			r.servers.remove(name)
		}
	}
	for name, port := range ports {
		if !all && r.ports[name] == port {
			continue
		}
		hostPorts := make([]hostPort, len(r.hosts))
		for i, h := range r.hosts {
			hostPorts[i] = h.at(port)
		}
		r.servers.set(name, r.server.serviceHandler(name), hostPorts)
	}
	r.ports = ports
}

// checkPorts returns the health check node ports of Services, and the node.
func (s *Server) checkPorts() (map[types.NamespacedName]uint16, *proxy.Node) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	ports := make(map[types.NamespacedName]uint16, len(s.counts))
	for name, svc := range s.counts {
		ports[name] = svc.port
	}
	return ports, s.served.Node()
}

// refreshAddresses finds the addresses to listen at, and reports whether they have changed. If
// the addresses of the machine cannot be read, the last ones stay.
func (r *running) refreshAddresses() bool {
	r.refreshed = time.Now()
	var chosen proxy.NodePortAddresses
	if r.node != nil {
		chosen = r.node.NodePorts
		chosen.Prefixes = slices.Concat(chosen.Prefixes, chosen.Loopback)
	}
	addrs, err := r.addresses()
	if err != nil && !chosen.All {
		return false
	}
	hosts := hostsOf(chosen, addrs)
	isChanged := !slices.Equal(hosts, r.hosts)
	r.hosts = hosts
	return isChanged
}

// hostsOf returns the addresses to listen at: wildcard addresses where possible.
func hostsOf(chosen proxy.NodePortAddresses, addrs []netip.Addr) []hostPort {
	all4 := slices.ContainsFunc(chosen.Prefixes, func(p netip.Prefix) bool { return p.Bits() == 0 && p.Addr().Is4() })
	all6 := slices.ContainsFunc(chosen.Prefixes, func(p netip.Prefix) bool { return p.Bits() == 0 && p.Addr().Is6() })
	var out []hostPort
	switch {
	case chosen.All || all4 && all6:
		return []hostPort{{"tcp", ""}}
	case all4:
		out = append(out, hostPort{"tcp4", "0.0.0.0"})
	case all6:
		out = append(out, hostPort{"tcp6", "::"})
	}
	for _, a := range addrs {
		if a.Is4() && all4 || a.Is6() && all6 {
			continue
		}
		if slices.ContainsFunc(chosen.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			out = append(out, hostPort{"tcp", a.String()})
		}
	}
	slices.SortFunc(out, hostPort.compare)
	return slices.Compact(out)
}

func machineAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	return bindable(list), err
}

// bindable returns the addresses that sockets can be bound to without naming an
// interface.
func bindable(list []net.Addr) (out []netip.Addr) {
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && !ip.IsLinkLocalUnicast() {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out
}
