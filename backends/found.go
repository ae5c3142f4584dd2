package backends

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Finds collects the frontends that a target has found, for FoundFrontends of [proxy.Abilities]. The zero value
// has none.
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

// Take returns what was added, as FoundFrontends of [proxy.Abilities] does, and forgets it.
func (f *Finds) Take() (all []*proxy.ServicePort) {
	for _, p := range f.by {
		all = append(all, p)
	}
	f.by = nil
	return all
}
