package nftables

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// fault says why a service port cannot be programmed, if so. No tracker makes
// such ports, but programs may make their own.
func fault(port *proxy.ServicePort) error {
	if n := port.Name; n.Family != v1.IPv4Protocol && n.Family != v1.IPv6Protocol {
		return fmt.Errorf("IP family %q is not known", n.Family)
	} else if n.Protocol != v1.ProtocolTCP && n.Protocol != v1.ProtocolUDP && n.Protocol != v1.ProtocolSCTP {
		return fmt.Errorf("protocol %q is not known", n.Protocol)
	}
	if err := faultyFrontend(port); err != nil {
		return err
	}
	for _, pool := range [...]proxy.Pool{proxy.PoolCluster, proxy.PoolLocal} {
		for _, e := range port.Pool(pool) {
			if !fits(port, e.Addr.Addr()) {
				return fmt.Errorf("endpoint %v: no address of family %s", e.Addr, port.Name.Family)
			}
		}
	}
	return nil
}

// fits reports whether an address is one of the port's family.
func fits(port *proxy.ServicePort, a netip.Addr) bool {
	return a.IsValid() && (a.Is4() || a.Is4In6()) == (port.Name.Family != v1.IPv6Protocol)
}

func faultyFrontend(port *proxy.ServicePort) error {
	for i := range port.Frontends {
		f := &port.Frontends[i]
		addr := f.Addr.Addr()
		if err := cmp.Or(faultyRoute(port, f.FromInside), faultyRoute(port, f.FromOutside)); err != nil {
			return fmt.Errorf("frontend %v: %w", f.Addr, err)
		}
		if !fits(port, addr) || f.Kind != proxy.NodePort && addr.IsUnspecified() {
			return fmt.Errorf("frontend %v: no address of family %s", f.Addr, port.Name.Family)
		}
		wrong := func(s netip.Prefix) bool { return !s.IsValid() || !fits(port, s.Addr()) }
		if slices.ContainsFunc(f.AllowedSources, wrong) {
			return fmt.Errorf("frontend %v: source ranges %v: not of family %s", f.Addr, f.AllowedSources, port.Name.Family)
		}
	}
	return nil
}

func faultyRoute(port *proxy.ServicePort, r proxy.TrafficRoute) error {
	switch {
	case r.Action == proxy.Pass:
		return errors.New("its traffic cannot be left alone: forward, reject or drop it")
	case r.Action == proxy.Forward && len(port.Pool(r.Pool)) == 0:
		return fmt.Errorf("a route leads to pool %s, which is empty", r.Pool)
	}
	return nil
}

// refusal is an object that cannot be written. It makes the commit fail, and so
// has the port that needs it reported.
func (p *page) refusal(port *proxy.ServicePort, err error) object {
	fam, name := familyOf(port.Name.Family), "refused-"+port.Name.String()
	v := p.hash(name, err.Error())
	p.chains[definitionID{fam, name, v}] = chainDefinition{err: err}
	return object{Key: key{kind: kindChain, fam: fam, name: p.names.of(fam).number(name)}, Value: v}
}
