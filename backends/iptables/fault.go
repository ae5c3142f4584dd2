package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// fault says why a service port cannot be programmed, if so. No tracker makes
// such ports, but programs may make their own.
func (p *page) fault(port *proxy.ServicePort) error {
	switch port.Name.Protocol {
	case v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP:
	default:
		return fmt.Errorf("protocol %q: none that has ports", port.Name.Protocol)
	}
	for i := range port.Frontends {
		if err := p.frontendFault(port, &port.Frontends[i]); err != nil {
			return err
		}
	}
	if port.Affinity.Enabled() {
		if err := p.affinityFault(); err != nil {
			return err
		}
	}
	return errors.Join(p.misfit(port.Cluster), p.misfit(port.Local))
}

func (p *page) frontendFault(port *proxy.ServicePort, f *proxy.Frontend) error {
	addr := f.Addr.Addr()
	if !p.fits(addr) || f.Kind != proxy.NodePort && addr.IsUnspecified() {
		return fmt.Errorf("frontend %v: no address of family %s", f.Addr, p.family)
	}
	wrong := func(s netip.Prefix) bool { return !s.IsValid() || !p.fits(s.Addr()) }
	if slices.ContainsFunc(f.AllowedSources, wrong) {
		return fmt.Errorf("frontend %v: source ranges %v: not of family %s", f.Addr, f.AllowedSources, p.family)
	}
	for _, r := range [...]proxy.TrafficRoute{f.FromInside, f.FromOutside} {
		if r.Action == proxy.Forward && len(port.Pool(r.Pool)) == 0 {
			return fmt.Errorf("frontend %v: a route to no endpoints", f.Addr)
		}
	}
	return nil
}

func (p *page) fits(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && a.Is4() == (p.family == v1.IPv4Protocol)
}

func (p *page) misfit(list []*endpoints.Endpoint) error {
	for _, e := range list {
		if !p.fits(e.Addr.Addr()) {
			return fmt.Errorf("endpoint %v: no address of family %s", e.Addr, p.family)
		}
	}
	return nil
}

// affinityFault says why affinity cannot be had as it was asked for.
func (p *page) affinityFault() error {
	want, have := p.options.AffinityClients, p.remembers
	if want <= have {
		return nil
	}
	return fmt.Errorf("session affinity: the kernel remembers %d clients of an endpoint, not %d: "+
		"load the module xt_recent with ip_list_tot=%d", have, want, want)
}
