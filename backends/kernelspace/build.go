package kernelspace

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// build returns the load balancer of a key and value, with the endpoints that exist. Nothing waits for one
// with an address of the node: pods in the network of the node may have no endpoint in HNS.
func (t *target) build(ctx context.Context, k key, v *value, with payload) (hcn.LoadBalancer, error) {
	vip := k.addr.Addr()
	b := hcn.LoadBalancer{
		Flags:        v.flags,
		PortMappings: []hcn.PortMapping{{Protocol: k.protocol, InternalPort: v.port, ExternalPort: k.addr.Port(), Distribution: v.distribution, Flags: v.mapping}},
	}
	if !vip.IsUnspecified() {
		b.FrontendVIPs = []netip.Addr{vip}
	}
	if vip.Is6() {
		b.Flags |= hcn.IPv6
	}
	if k.kind == kindHealthCheck {
		return b, t.addRoot(ctx, k, &b)
	}
	missing := map[netip.Addr]bool{}
	resolve := func(a netip.Addr, isLocal bool) {
		isNode := slices.Contains(with.node, a)
		if id, found := t.mirror.find(a, isLocal && !isNode); found {
			b.Endpoints = append(b.Endpoints, id)
		} else if !isLocal || !isNode {
			missing[a] = isLocal
		}
	}
	if v.decode(resolve); len(missing) > 0 && !t.looked.endpoints {
		if err := t.lookForEndpoints(ctx); err != nil {
			return b, err
		}
		b.Endpoints = nil
		clear(missing)
		v.decode(resolve)
	}
	if len(missing) > 0 {
		t.setPending(k, pendingObject{err: fmt.Errorf("%w: %d", errMissing, len(missing)), awaited: missing})
	}
	slices.Sort(b.Endpoints)
	b.Endpoints = slices.Compact(b.Endpoints)
	b.SourceVIP = t.renderer().sourceOf(t.mirror, k, v)
	return b, nil
}

// addRoot adds the endpoint of the node that gets health checks.
func (t *target) addRoot(ctx context.Context, k key, b *hcn.LoadBalancer) error {
	if t.mirror.root == "" && !t.looked.endpoints {
		if err := t.lookForEndpoints(ctx); err != nil {
			return err
		}
	}
	if t.mirror.root == "" {
		t.setPending(k, pendingObject{err: fmt.Errorf("%w: endpoint %q", errMissing, t.options.HealthChecks.Endpoint), awaited: map[netip.Addr]bool{{}: true}})
		return nil
	}
	b.Endpoints = []string{t.mirror.root}
	return nil
}

// sourceOf returns the source address of a load balancer. In an overlay network it is the node's if
// an endpoint is outside of the remote subnets, as nodes are.
func (r *renderer) sourceOf(m *mirror, k key, v *value) (source netip.Addr) {
	source = r.options.sourceVIP(ipaddr.FamilyOf(k.addr.Addr()))
	if !r.overlay {
		return source
	}
	v.decode(func(a netip.Addr, isLocal bool) {
		if provider, found := providerOf(&m.network, a); !isLocal && (!found || provider == a) {
			source = v.host
		}
	})
	return source
}
