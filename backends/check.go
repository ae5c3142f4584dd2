package backends

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// Checker is an optional ability of a [Target], for service ports that it cannot
// serve.
type Checker interface {
	// Check says why a service port cannot be programmed for a node; nil if it
	// can. The port is then not rendered, and Apply reports the error by the
	// port's name. It must be pure, as [Render] is. What makes no sense for any
	// dataplane, such as an endpoint of the other family, does not get here.
	Check(node *proxy.Node, port *proxy.ServicePort) error
}

// tryAdmitted is try without the changes to ports that cannot be programmed, which
// are reported as if they had failed.
func (r *reconciler[K, V]) tryAdmitted(ctx context.Context, changes []change) error {
	admitted, refused := r.admit(changes)
	err := r.try(ctx, admitted)
	if len(refused) == 0 {
		return err
	}
	if err == nil {
		return refused
	}
	if failed, some := errors.AsType[proxy.PortErrors](err); some {
		maps.Copy(failed, refused)
	}
	return err
}

// admit takes changes to ports that cannot be programmed off a list, and gives the
// reasons.
func (r *reconciler[K, V]) admit(changes []change) (admitted []change, refused proxy.PortErrors) {
	admitted = changes[:0]
	for _, c := range changes {
		err := r.check(&c)
		if err == nil {
			admitted = append(admitted, c)
			continue
		}
		if refused == nil {
			refused = proxy.PortErrors{}
		}
		refused[c.new.Name] = err
	}
	return admitted, refused
}

// check says why what a change leads to cannot be programmed.
func (r *reconciler[K, V]) check(c *change) error {
	if c.new == nil {
		return nil
	}
	if err := fault(c.new); err != nil || r.checker == nil {
		return err
	}
	return r.checker.Check(c.newNode, c.new)
}

// fault says why no dataplane can hold a service port. No tracker makes such ports,
// but programs may make their own.
func fault(port *proxy.ServicePort) error {
	if f := port.Name.Family; f != v1.IPv4Protocol && f != v1.IPv6Protocol {
		return fmt.Errorf("IP family %q is not known", f)
	}
	switch port.Name.Protocol {
	case v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP:
	default:
		return fmt.Errorf("protocol %q is not known", port.Name.Protocol)
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

// fits reports whether an address is one of the port's family. One of IPv4 in the form
// of IPv6 belongs to neither: each dataplane would take it for something else.
func fits(port *proxy.ServicePort, a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && a.Is4() == (port.Name.Family == v1.IPv4Protocol)
}

func frontendFault(port *proxy.ServicePort, f *proxy.Frontend) error {
	// The unspecified address stands for all addresses of the node.
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
			return fmt.Errorf("a route leads to pool %s, which is empty", r.Pool)
		}
	}
	return nil
}
