package health

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// lookInterval is how often Run looks for addresses that the machine has got or
// lost.
const lookInterval = 10 * time.Second

// Run serves until ctx ends. Then it lets answers that are being written be
// finished, for a second at most, and returns when everything is closed. A
// Server runs once at a time.
func (s *Server) Run(ctx context.Context) {
	s.run(ctx, &net.ListenConfig{}, machineAddresses)
}

// listener opens sockets; [net.ListenConfig] is one.
type listener interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
}

func (s *Server) run(ctx context.Context, l listener, addresses func() ([]netip.Addr, error)) {
	r := &running{server: s, addresses: addresses, sites: newSites(l, s.options.Report, descriptors())}
	defer r.sites.close()
	if s.options.Address != "" {
		r.sites.set(types.NamespacedName{}, s, []place{{"tcp", s.options.Address}})
	}
	for address, h := range s.options.Pages {
		if h == nil {
			h = http.NotFoundHandler() // For nil, a server would serve what others have registered with package http.
		}
		r.sites.set(types.NamespacedName{Name: address}, h, []place{{"tcp", address}})
	}
	s.mu.Lock()
	s.moved = true // What an earlier Run has done is not known to this one.
	s.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		}
		r.update(ctx)
		timer.Reset(r.next())
	}
}

// running is what Run remembers.
type running struct {
	server    *Server
	addresses func() ([]netip.Addr, error)
	sites     *sites
	ports     map[types.NamespacedName]uint16
	nodePorts proxy.NodePortAddresses
	hosts     []place // whose addresses lack the port
	looked    time.Time
}

// update opens and closes what has changed, and tries again what is due.
func (r *running) update(ctx context.Context) {
	moved, all := r.take()
	if all || time.Since(r.looked) >= lookInterval {
		all = r.look() || all
		r.sites.mend()
	}
	if all {
		moved = slices.AppendSeq(moved, maps.Keys(r.ports))
	}
	for _, name := range moved {
		port, wanted := r.ports[name]
		if !wanted {
			r.sites.remove(name)
			continue
		}
		places := make([]place, len(r.hosts))
		for i, h := range r.hosts {
			places[i] = h.at(port)
		}
		r.sites.set(name, r.server.serviceHandler(name), places)
	}
	// Everything is closed before anything is opened, so that Services can
	// swap their ports.
	r.sites.open(ctx)
}

// take gives the Services whose port is another one now; all says that the
// addresses are others, too.
func (r *running) take() (moved []types.NamespacedName, all bool) {
	s := r.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ports == nil {
		r.ports = map[types.NamespacedName]uint16{}
		for name, svc := range s.counts.services {
			r.ports[name] = svc.port
		}
	}
	for name := range s.counts.moved {
		moved = append(moved, name)
		if svc := s.counts.services[name]; svc != nil {
			r.ports[name] = svc.port
		} else {
			delete(r.ports, name)
		}
	}
	clear(s.counts.moved)
	all, s.moved = s.moved, false
	if all && s.served.Node() != nil {
		r.nodePorts = s.served.Node().NodePorts
	}
	return moved, all
}

// look finds the addresses to listen at, and reports whether they are others
// than before. When the machine's addresses cannot be had, those found last
// stay, and are looked for again soon.
func (r *running) look() bool {
	r.looked = time.Now()
	addrs, err := r.addresses()
	if err != nil && !r.nodePorts.All {
		return false
	}
	hosts := hostsOf(r.nodePorts, addrs)
	if slices.Equal(hosts, r.hosts) {
		return false
	}
	r.hosts = hosts
	return true
}

// next is when there is something to do although nobody says so.
func (r *running) next() time.Duration {
	next := lookInterval
	if due := r.sites.due(); !due.IsZero() {
		next = min(next, max(0, time.Until(due)))
	}
	return next
}

// hostsOf gives the addresses to listen at: one for everything where possible.
func hostsOf(chosen proxy.NodePortAddresses, addrs []netip.Addr) []place {
	all4 := slices.ContainsFunc(chosen.Prefixes, func(p netip.Prefix) bool { return p.Bits() == 0 && p.Addr().Is4() })
	all6 := slices.ContainsFunc(chosen.Prefixes, func(p netip.Prefix) bool { return p.Bits() == 0 && p.Addr().Is6() })
	var out []place
	switch {
	case chosen.All || all4 && all6:
		return []place{{"tcp", ""}}
	case all4:
		out = append(out, place{"tcp4", "0.0.0.0"})
	case all6:
		out = append(out, place{"tcp6", "::"})
	}
	for _, a := range addrs {
		if a.Is4() && all4 || a.Is6() && all6 {
			continue
		}
		if slices.ContainsFunc(chosen.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			out = append(out, place{"tcp", a.String()})
		}
	}
	slices.SortFunc(out, place.compare)
	return slices.Compact(out)
}

func machineAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	return bindable(list), err
}

// bindable gives the addresses that sockets can be bound to without naming an
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
