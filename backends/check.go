package backends

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// admit removes the changes to ports that cannot be programmed from a list, and returns
// their errors. Of such a port the kernel may have a part of an earlier change: it gets what it had.
func (r *reconciler[K, V]) admit(changes []change[K]) (admitted []change[K], refused proxy.PortErrors) {
	admitted = changes[:0]
	for _, c := range changes {
		err := r.check(&c)
		if err != nil {
			if refused == nil {
				refused = proxy.PortErrors{}
			}
			refused[c.new.Name] = err
			if c.old == nil || len(r.pending) == 0 || c.oldNode != c.newNode {
				continue
			}
			c.new = c.old
		}
		admitted = append(admitted, c)
	}
	return admitted, refused
}

// check returns why the new port of a change cannot be programmed.
func (r *reconciler[K, V]) check(c *change[K]) error {
	if c.new == nil {
		return nil
	}
	if err := fault(c.new); err != nil || r.able.Check == nil {
		return err
	}
	return r.able.Check(c.newNode, c.new)
}

// fault returns why no dataplane can serve a service port. Trackers make no such ports,
// but programs may make their own.
func fault(port *proxy.ServicePort) error {
	if f := port.Name.Family; f != v1.IPv4Protocol && f != v1.IPv6Protocol {
		return fmt.Errorf("unknown IP family %q", f)
	}
	switch port.Name.Protocol {
	case v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP:
	default:
		return fmt.Errorf("unknown protocol %q", port.Name.Protocol)
	}
	for i := range port.Frontends {
		if err := frontendFault(port, &port.Frontends[i]); err != nil {
			return fmt.Errorf("frontend %v: %w", port.Frontends[i].Addr, err)
		}
	}
	for _, pool := range [...][]*endpoints.Endpoint{port.Cluster, port.Local} {
		for _, e := range pool {
			if !fits(port, e.Addr.Addr()) {
				return fmt.Errorf("endpoint %v: no address of family %s", e.Addr, port.Name.Family)
			}
		}
	}
	return nil
}

// fits reports whether an address is of the port's family. An IPv4-mapped IPv6 address is
// of neither: dataplanes would read it in different ways.
func fits(port *proxy.ServicePort, a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && a.Is4() == (port.Name.Family == v1.IPv4Protocol)
}

func frontendFault(port *proxy.ServicePort, f *proxy.Frontend) error {
	// The unspecified address means all addresses of the node.
	if addr := f.Addr.Addr(); !fits(port, addr) || f.Kind != proxy.NodePort && addr.IsUnspecified() {
		return fmt.Errorf("no address of family %s", port.Name.Family)
	}
	for _, s := range f.AllowedSources {
		if !s.IsValid() || !fits(port, s.Addr()) {
			return fmt.Errorf("source ranges %v: not of family %s", f.AllowedSources, port.Name.Family)
		}
	}
	for _, r := range [...]proxy.TrafficRoute{f.FromInside, f.FromOutside} {
		if r.Action == proxy.Forward && len(port.Pool(r.Pool)) == 0 {
			return fmt.Errorf("a route leads to pool %s, which has no endpoints", r.Pool)
		}
	}
	return nil
}
