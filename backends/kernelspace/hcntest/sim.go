package hcntest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// Sim is a simulated service. All methods may be called from any goroutine.
type Sim struct {
	mu            sync.Mutex
	version       hcn.Version
	nodeAddress   netip.Addr
	networks      map[string]hcn.Network
	endpoints     map[string]hcn.Endpoint
	loadBalancers map[string]hcn.LoadBalancer
	index
	made       uint64 // number of objects made
	fault      func(Call) Fault
	calls      map[string]int
	violations []string
	notices
}

// index finds what collides: addresses are the endpoints by network and address, slots the load
// balancers by what must be unique, and uses the number of load balancers that refer to an endpoint.
type index struct {
	addresses map[networkAddress]string
	slots     map[slot]string
	uses      map[string]int
	shared    bool // several endpoints may have an address
}

// networkAddress is an address in a network.
type networkAddress struct {
	network string
	addr    netip.Addr
}

// slot is where a load balancer answers. Without address it answers at the addresses of the node.
type slot struct {
	isIPv6   bool
	addr     netip.Addr
	protocol uint8
	port     uint16
}

func slotsOf(b *hcn.LoadBalancer) (all []slot) {
	vips := b.FrontendVIPs
	if len(vips) == 0 {
		vips = []netip.Addr{{}}
	}
	for _, vip := range vips {
		for _, p := range b.PortMappings {
			all = append(all, slot{b.Flags&hcn.IPv6 != 0, vip, p.Protocol, p.ExternalPort})
		}
	}
	return all
}

// notices are the notifications that nobody has waited for yet.
type notices struct {
	pending  hcn.Event
	notified chan struct{} // nil if the service does not notify
}

// Call is a call of a method of [hcn.Client].
type Call struct {
	// Method is its name.
	Method string
	// ID is the ID of the object, if the caller gave one.
	ID string
}

// Fault is what goes wrong with a call. The zero Fault is none.
type Fault struct {
	// Err is what the call returns.
	Err error
	// Done says that it takes effect although it returns Err.
	Done bool
	// Ignored says that it returns success without effect. It matters for calls that write.
	Ignored bool
}

// New returns a service of a version, without objects. nodeAddress is what it takes as the address
// of load balancers without one.
func New(version hcn.Version, nodeAddress netip.Addr) *Sim {
	return &Sim{
		version: version, nodeAddress: nodeAddress,
		networks: map[string]hcn.Network{}, endpoints: map[string]hcn.Endpoint{}, loadBalancers: map[string]hcn.LoadBalancer{},
		index: index{addresses: map[networkAddress]string{}, slots: map[slot]string{}, uses: map[string]int{}},
		calls: map[string]int{}, notices: notices{notified: make(chan struct{}, 1)},
	}
}

// SetFault has f decide about each call, beginning with the next one; nil ends all faults. The Sim
// is locked while f runs.
func (s *Sim) SetFault(f func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// Calls returns how often each method was called, without Wait.
func (s *Sim) Calls() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

// Total returns the number of calls, without calls of Wait.
func (s *Sim) Total() (n int) {
	for _, c := range s.Calls() {
		n += c
	}
	return n
}

// Violations returns what clients did that leaves a service in a bad state.
func (s *Sim) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.violations)
}

// Silence makes the service one that cannot notify. It must be called before Wait.
func (s *Sim) Silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notified = nil
}

// ShareAddresses lets a pod have the address of a remote endpoint, as some versions do.
func (s *Sim) ShareAddresses() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = true
}

// Notify notifies of an event.
func (s *Sim) Notify(e hcn.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify(e)
}

func (s *Sim) notify(e hcn.Event) {
	s.pending = max(s.pending, e)
	select {
	case s.notified <- struct{}{}:
	default:
	}
}

// Wait implements [hcn.Host].
func (s *Sim) Wait(ctx context.Context) (hcn.Event, error) {
	s.mu.Lock()
	notified := s.notified
	s.mu.Unlock()
	if notified == nil {
		return 0, failure("RegisterServiceCallback", hcn.CodeNotImplemented)
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-notified:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.pending
	s.pending = 0
	return e, nil
}

// call runs a method. do must return an error before it changes anything.
func (s *Sim) call(ctx context.Context, c Call, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[c.Method]++
	var f Fault
	if s.fault != nil {
		f = s.fault(c)
	}
	switch {
	case f.Ignored:
		return nil
	case f.Err == nil:
		return do()
	case f.Done:
		_ = do() // its outcome is not reported
	}
	return f.Err
}

func failure(method string, code uint32) error { return &hcn.Error{Op: "Hcn" + method, Code: code} }

// id returns a new GUID.
func (s *Sim) id() string {
	s.made++
	return fmt.Sprintf("%08x-0000-4000-8000-%012x", uint32(s.made*2654435761), s.made)
}

// Version implements [hcn.Host].
func (s *Sim) Version(ctx context.Context) (v hcn.Version, err error) {
	err = s.call(ctx, Call{Method: "Version"}, func() error {
		v = s.version
		return nil
	})
	return v, err
}

// Network implements [hcn.Host].
func (s *Sim) Network(ctx context.Context, name string) (n hcn.Network, err error) {
	err = s.call(ctx, Call{Method: "Network", ID: name}, func() error {
		for _, have := range s.networks {
			if have.Name == name {
				n = have
				n.Subnets, n.RemoteSubnets = slices.Clone(have.Subnets), slices.Clone(have.RemoteSubnets)
				return nil
			}
		}
		return failure("OpenNetwork", hcn.CodeNetworkNotFound)
	})
	return n, err
}

// EndpointIDs implements [hcn.Reader].
func (s *Sim) EndpointIDs(ctx context.Context, networkID string) (ids []string, err error) {
	err = s.call(ctx, Call{Method: "EndpointIDs", ID: networkID}, func() error {
		for id, e := range s.endpoints {
			if networkID == "" || e.NetworkID == networkID {
				ids = append(ids, id)
			}
		}
		return nil
	})
	slices.Sort(ids)
	return ids, err
}

// Endpoint implements [hcn.Reader].
func (s *Sim) Endpoint(ctx context.Context, id string) (e hcn.Endpoint, err error) {
	err = s.call(ctx, Call{Method: "Endpoint", ID: id}, func() error {
		have, ok := s.endpoints[id]
		if !ok {
			return failure("OpenEndpoint", hcn.CodeEndpointNotFound)
		}
		e = have
		e.Addresses = slices.Clone(have.Addresses)
		return nil
	})
	return e, err
}

// LoadBalancerIDs implements [hcn.Reader].
func (s *Sim) LoadBalancerIDs(ctx context.Context) (ids []string, err error) {
	err = s.call(ctx, Call{Method: "LoadBalancerIDs"}, func() error {
		ids = slices.Sorted(maps.Keys(s.loadBalancers))
		return nil
	})
	return ids, err
}

// LoadBalancer implements [hcn.Reader]. It returns the endpoints in another order than they were
// given in.
func (s *Sim) LoadBalancer(ctx context.Context, id string) (b hcn.LoadBalancer, err error) {
	err = s.call(ctx, Call{Method: "LoadBalancer", ID: id}, func() error {
		have, ok := s.loadBalancers[id]
		if !ok {
			return failure("OpenLoadBalancer", hcn.CodeElementNotFound)
		}
		b = clone(&have)
		slices.SortFunc(b.Endpoints, func(x, y string) int { return cmp.Compare(y, x) })
		return nil
	})
	return b, err
}

func clone(b *hcn.LoadBalancer) hcn.LoadBalancer {
	c := *b
	c.Endpoints, c.FrontendVIPs, c.PortMappings = slices.Clone(b.Endpoints), slices.Clone(b.FrontendVIPs), slices.Clone(b.PortMappings)
	return c
}

var _ hcn.Client = (*Sim)(nil)
