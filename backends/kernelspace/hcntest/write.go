package hcntest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// AddNetwork makes a network, as a CNI plugin does, and returns its ID.
func (s *Sim) AddNetwork(n hcn.Network) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.ID = s.id()
	s.networks[n.ID] = n
	s.notify(hcn.NetworksChanged)
	return n.ID
}

// SetRemoteSubnets replaces the remote subnets of a network, as a CNI plugin does when nodes join.
func (s *Sim) SetRemoteSubnets(id string, subnets ...hcn.RemoteSubnet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.networks[id]
	n.RemoteSubnets = subnets
	s.networks[id] = n
}

// RemoveNetwork removes a network with all of its endpoints by force, as a restart of a CNI plugin
// does; load balancers that use them stay.
func (s *Sim) RemoveNetwork(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.networks, id)
	for at, e := range s.endpoints {
		if e.NetworkID == id {
			s.dropEndpoint(at)
		}
	}
	s.notify(hcn.NetworksChanged)
}

// AddEndpoint makes an endpoint of a pod of this node, as a CNI plugin does. It fails if another
// endpoint of the network has one of its addresses, unless these are shared.
func (s *Sim) AddEndpoint(networkID, name string, addresses ...netip.Addr) (id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify(hcn.EndpointsChanged)
	return s.addEndpoint(hcn.Endpoint{NetworkID: networkID, Name: name, Addresses: addresses})
}

// RemoveEndpoint removes an endpoint of a pod of this node.
func (s *Sim) RemoveEndpoint(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropEndpoint(id)
	s.notify(hcn.EndpointsChanged)
}

func (s *Sim) addEndpoint(e hcn.Endpoint) (string, error) {
	if _, ok := s.networks[e.NetworkID]; !ok {
		return "", failure("OpenNetwork", hcn.CodeNetworkNotFound)
	}
	for _, a := range e.Addresses {
		id, taken := s.addresses[networkAddress{e.NetworkID, a}]
		if taken && (!s.shared || e.Remote || !s.endpoints[id].Remote) {
			return "", failure("CreateEndpoint", hcn.CodeAlreadyExists)
		}
	}
	e.ID = s.id()
	e.Addresses = slices.Clone(e.Addresses)
	s.endpoints[e.ID] = e
	for _, a := range e.Addresses {
		s.addresses[networkAddress{e.NetworkID, a}] = e.ID
	}
	return e.ID, nil
}

func (s *Sim) dropEndpoint(id string) {
	e := s.endpoints[id]
	for _, a := range e.Addresses {
		if at := (networkAddress{e.NetworkID, a}); s.addresses[at] == id {
			delete(s.addresses, at)
		}
	}
	delete(s.endpoints, id)
}

// CreateEndpoint implements [hcn.EndpointWriter].
func (s *Sim) CreateEndpoint(ctx context.Context, e hcn.Endpoint) (id string, err error) {
	err = s.call(ctx, Call{Method: "CreateEndpoint"}, func() (err error) {
		if len(e.Addresses) == 0 {
			return failure("CreateEndpoint", hcn.CodeInvalidParameter)
		}
		id, err = s.addEndpoint(e)
		return err
	})
	if err == nil && id == "" {
		id = "00000000-0000-4000-8000-ffffffffffff" // it was ignored
	}
	return id, err
}

// DeleteEndpoint implements [hcn.EndpointWriter].
func (s *Sim) DeleteEndpoint(ctx context.Context, id string) error {
	return s.call(ctx, Call{"DeleteEndpoint", id}, func() error {
		e, ok := s.endpoints[id]
		if !ok {
			return failure("DeleteEndpoint", hcn.CodeEndpointNotFound)
		}
		for _, b := range s.loadBalancers {
			if s.uses[id] == 0 {
				break
			}
			if slices.Contains(b.Endpoints, id) {
				s.violations = append(s.violations, fmt.Sprintf("endpoint %v was deleted, which load balancer %s uses", e.Addresses, text(&b, s.endpoints)))
			}
		}
		if !e.Remote && e.MAC == "" {
			s.violations = append(s.violations, fmt.Sprintf("endpoint %v of a pod was deleted", e.Addresses))
		}
		s.dropEndpoint(id)
		return nil
	})
}

// CreateLoadBalancer implements [hcn.LoadBalancerWriter].
func (s *Sim) CreateLoadBalancer(ctx context.Context, b hcn.LoadBalancer) (id string, err error) {
	err = s.call(ctx, Call{Method: "CreateLoadBalancer"}, func() error {
		b.ID = ""
		if err := s.put("CreateLoadBalancer", &b); err != nil {
			return err
		}
		id = b.ID
		return nil
	})
	if err == nil && id == "" {
		id = "00000000-0000-4000-8000-ffffffffffff"
	}
	return id, err
}

// ModifyLoadBalancer implements [hcn.LoadBalancerWriter].
func (s *Sim) ModifyLoadBalancer(ctx context.Context, b hcn.LoadBalancer) error {
	return s.call(ctx, Call{"ModifyLoadBalancer", b.ID}, func() error {
		if !s.version.Features().Modify {
			return failure("ModifyLoadBalancer", hcn.CodeNotImplemented)
		}
		if _, ok := s.loadBalancers[b.ID]; !ok {
			return failure("OpenLoadBalancer", hcn.CodeElementNotFound)
		}
		return s.put("ModifyLoadBalancer", &b)
	})
}

// DeleteLoadBalancer implements [hcn.LoadBalancerWriter].
func (s *Sim) DeleteLoadBalancer(ctx context.Context, id string) error {
	return s.call(ctx, Call{"DeleteLoadBalancer", id}, func() error {
		if _, ok := s.loadBalancers[id]; !ok {
			return failure("DeleteLoadBalancer", hcn.CodeElementNotFound)
		}
		s.dropLoadBalancer(id)
		return nil
	})
}

// put makes or replaces a load balancer, and sets the ID of a new one.
func (s *Sim) put(method string, b *hcn.LoadBalancer) error {
	c := clone(b)
	if code := s.refusal(&c); code != 0 {
		return failure(method, code)
	}
	if c.ID == "" {
		c.ID = s.id()
		b.ID = c.ID
	}
	s.dropLoadBalancer(c.ID)
	s.loadBalancers[c.ID] = c
	for _, at := range slotsOf(&c) {
		s.slots[at] = c.ID
	}
	for _, id := range c.Endpoints {
		s.uses[id]++
	}
	return nil
}

func (s *Sim) dropLoadBalancer(id string) {
	b := s.loadBalancers[id]
	for _, at := range slotsOf(&b) {
		delete(s.slots, at)
	}
	for _, e := range b.Endpoints {
		s.uses[e]--
	}
	delete(s.loadBalancers, id)
}

// refusal returns the code with which a load balancer is refused, 0 if it is not. It fills in the
// address of the node.
func (s *Sim) refusal(b *hcn.LoadBalancer) uint32 {
	if len(b.Endpoints) == 0 || len(b.PortMappings) == 0 {
		return hcn.CodeInvalidParameter
	}
	if s.lacks(b) {
		return hcn.CodeUnsupported
	}
	for i, id := range b.Endpoints {
		if _, ok := s.endpoints[id]; !ok {
			return hcn.CodeEndpointNotFound
		}
		if slices.Contains(b.Endpoints[:i], id) {
			return hcn.CodeInvalidParameter
		}
	}
	if len(b.FrontendVIPs) == 0 && b.Flags&hcn.IPv6 == 0 {
		b.FrontendVIPs = []netip.Addr{s.nodeAddress}
	}
	for _, at := range slotsOf(b) {
		if id, taken := s.slots[at]; taken && id != b.ID {
			return hcn.CodePortExists
		}
	}
	return 0
}

// lacks reports whether a load balancer has a feature that the version does not have.
func (s *Sim) lacks(b *hcn.LoadBalancer) bool {
	can := s.version.Features()
	bySource := slices.ContainsFunc(b.PortMappings, func(p hcn.PortMapping) bool { return p.Distribution == hcn.BySource })
	return b.Flags&hcn.DSR != 0 && !can.DSR || b.Flags&hcn.IPv6 != 0 && !can.DualStack || bySource && !can.SessionAffinity
}
