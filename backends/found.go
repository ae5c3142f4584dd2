package backends

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Finder is an optional ability of a [Target] and of any [proxy.Backend] that adopts what an earlier process has
// left. A [proxy.Runner] gives what it finds to a conntrack.Cleaner, which removes the flows to
// Services that were deleted while no process ran.
type Finder interface {
	// Found returns the UDP and SCTP frontends that the last Apply from the zero snapshot found, whether they are
	// wanted or not, as service ports with nothing but frontends: a node port has the
	// unspecified address, or is there once for each address at which it is served. What it returns is
	// forgotten.
	Found() []*proxy.ServicePort
}

// Found implements [Finder] by the target, if it is one.
func (r *reconciler[K, V]) Found() []*proxy.ServicePort {
	if f, can := r.target.(Finder); can {
		return f.Found()
	}
	return nil
}

// Finds collects what a [Finder] finds. The zero value has nothing.
type Finds struct {
	by map[proxy.ServicePortName]*proxy.ServicePort
}

// Add adds a frontend by the number of its protocol, unless it is TCP. A node port may have no address.
func (f *Finds) Add(family v1.IPFamily, protocol uint8, at netip.AddrPort) {
	if !at.Addr().IsValid() {
		unspecified := netip.IPv4Unspecified()
		if family == v1.IPv6Protocol {
			unspecified = netip.IPv6Unspecified()
		}
		at = netip.AddrPortFrom(unspecified, at.Port())
	}
	name := proxy.ServicePortName{Family: family}
	switch protocol {
	case ipaddr.UDP:
		name.Protocol = v1.ProtocolUDP
	case ipaddr.SCTP:
		name.Protocol = v1.ProtocolSCTP
	default:
		return
	}
	if f.by == nil {
		f.by = map[proxy.ServicePortName]*proxy.ServicePort{}
	}
	p := f.by[name]
	if p == nil {
		p = &proxy.ServicePort{Name: name}
		f.by[name] = p
	}
	p.Frontends = append(p.Frontends, proxy.Frontend{Addr: at})
}

// Take returns what was added, as [Finder] does, and forgets it.
func (f *Finds) Take() (all []*proxy.ServicePort) {
	for _, p := range f.by {
		all = append(all, p)
	}
	f.by = nil
	return all
}
