package kernelspace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// mirror is what HNS holds, as far as it was read and written.
type mirror struct {
	network hcn.Network
	// host is the node's primary address that objects have in an overlay network; the zero Addr
	// before the first one is written.
	host      netip.Addr
	endpoints map[string]hcn.Endpoint // by ID
	// prefix begins the names of endpoints that the backend makes, rootName the name of the
	// endpoint that gets health checks, and root its ID; empty if there is none.
	prefix, rootName, root string
	// pods are the IDs of the endpoints of this node's pods by address, and made the IDs of the
	// endpoints that the backend, kube-proxy or the like has made.
	pods, made map[netip.Addr]string
	// loadBalancers are those that a key can name, by their place; users counts, by ID of an endpoint, all load
	// balancers that refer to it.
	loadBalancers map[place]balancer
	users         map[string]int
	// stale says that load balancers may use an endpoint that another one with its address has replaced.
	stale bool
}

// place is where a load balancer answers. HNS has one at most for each.
type place struct {
	protocol uint8
	addr     netip.AddrPort
}

func (k key) place() place { return place{k.protocol, k.addr} }

// balancer is a load balancer with the key that names it.
type balancer struct {
	key
	hcn.LoadBalancer
}

func newMirror(network hcn.Network, prefix, rootName string) *mirror {
	return &mirror{
		network: network, prefix: prefix, rootName: rootName, endpoints: map[string]hcn.Endpoint{}, pods: map[netip.Addr]string{}, made: map[netip.Addr]string{},
		loadBalancers: map[place]balancer{}, users: map[string]int{},
	}
}

// addEndpoint records an endpoint. One whose name has the prefix, or that is remote, is no pod's.
func (m *mirror) addEndpoint(e hcn.Endpoint) {
	m.endpoints[e.ID] = e
	if m.rootName != "" && strings.EqualFold(e.Name, m.rootName) {
		m.root = e.ID
	}
	at := m.pods
	if e.Remote || strings.HasPrefix(e.Name, m.prefix) {
		at = m.made
	}
	for _, a := range e.Addresses {
		// Of several endpoints with one address, the same one is used at each list.
		if id, taken := at[a]; !taken || e.ID < id {
			at[a] = e.ID
		}
	}
}

func (m *mirror) dropEndpoint(id string) {
	for _, a := range m.endpoints[id].Addresses {
		for _, at := range []map[netip.Addr]string{m.pods, m.made} {
			if at[a] == id {
				delete(at, a)
			}
		}
	}
	delete(m.endpoints, id)
	if m.root == id {
		m.root = ""
	}
}

// update makes the endpoints those that exist.
func (m *mirror) update(all map[string]hcn.Endpoint) {
	for id := range m.endpoints {
		if _, exists := all[id]; !exists {
			m.stale = m.stale || m.users[id] > 0
			m.dropEndpoint(id)
		}
	}
	for id, e := range all {
		if _, known := m.endpoints[id]; known {
			continue
		}
		for _, a := range e.Addresses {
			m.stale = m.stale || m.users[m.made[a]] > 0
		}
		m.addEndpoint(e)
	}
}

// find returns the ID of the endpoint with an address. A pod of this node has precedence: HNS may
// still have the endpoint that the address had while its pod was on another node. That one does not
// stand for the pod if only a local endpoint does: HNS may make none before it is deleted.
func (m *mirror) find(a netip.Addr, onlyLocal bool) (id string, found bool) {
	if id, found = m.pods[a]; !found && !onlyLocal {
		id, found = m.made[a]
	}
	return id, found
}

// get returns the load balancer of a key.
func (m *mirror) get(k key) (b hcn.LoadBalancer, exists bool) {
	if x := m.loadBalancers[k.place()]; x.key == k {
		return x.LoadBalancer, true
	}
	return b, false
}

// put records that a load balancer exists, drop that it does not.
func (m *mirror) put(k key, b hcn.LoadBalancer) {
	m.drop(k)
	b.Endpoints = slices.Clone(b.Endpoints)
	m.loadBalancers[k.place()] = balancer{k, b}
	m.count(&b, 1)
}

func (m *mirror) drop(k key) {
	if b, ok := m.loadBalancers[k.place()]; ok {
		m.count(&b.LoadBalancer, -1)
		delete(m.loadBalancers, k.place())
	}
}

// count records that a load balancer does, or does not any more, refer to its endpoints.
func (m *mirror) count(b *hcn.LoadBalancer, by int) {
	for _, id := range b.Endpoints {
		if m.users[id] += by; m.users[id] == 0 {
			delete(m.users, id)
		}
	}
}

// providerOf returns the provider address of a pod of another node; false if no remote subnet of a network has
// it.
func providerOf(n *hcn.Network, a netip.Addr) (provider netip.Addr, found bool) {
	for _, s := range n.RemoteSubnets {
		switch {
		case s.ProviderAddress == a:
			return a, true
		case s.Prefix.Contains(a) && s.ProviderAddress.IsValid():
			provider, found = s.ProviderAddress, true
		}
	}
	return provider, found
}

// Names of endpoints tell what they are for, after the name of the identity. Earlier versions appended the node of a
// pod:
//
//	vipkit/pod/10.1.0.9   vipkit/vip/10.96.0.10   vipkit/source/10.244.0.2
func (r role) String() string {
	return [...]string{rolePod: "pod", roleVIP: "vip", roleSource: "source"}[r]
}

// nameOf returns the name of the endpoint of a key.
func nameOf(prefix string, k key) string {
	return prefix + k.role.String() + "/" + k.addr.Addr().String()
}

// parseName returns the role in a name.
func parseName(name, prefix string) (r role, known bool) {
	rest, found := strings.CutPrefix(name, prefix)
	text, address, _ := strings.Cut(rest, "/")
	for r := rolePod; found && address != "" && r <= roleSource; r++ {
		if text == r.String() {
			return r, true
		}
	}
	return rolePod, false
}

// macOf returns the MAC address of a remote endpoint, which is on no wire: it only has to differ
// between addresses of a network.
func macOf(a netip.Addr) string {
	b := a.As16()
	if a.Is4() {
		return fmt.Sprintf("02-11-%02X-%02X-%02X-%02X", b[12], b[13], b[14], b[15])
	}
	return fmt.Sprintf("02-11-%02X-%02X-%02X-%02X", b[15], b[14], b[13], b[12])
}

// keyOf returns the key of a load balancer; false if no key names it: it has several addresses or
// ports, or none.
func keyOf(b *hcn.LoadBalancer) (k key, ok bool) {
	if len(b.PortMappings) != 1 || len(b.FrontendVIPs) > 1 {
		return k, false
	}
	p := &b.PortMappings[0]
	vip := netip.IPv4Unspecified()
	if b.Flags&hcn.IPv6 != 0 {
		vip = netip.IPv6Unspecified()
	}
	// HNS may fill in the address of the node.
	if p.Flags&hcn.LocalRoutedVIP == 0 {
		if len(b.FrontendVIPs) == 0 || b.FrontendVIPs[0].Is4() != vip.Is4() {
			return k, false
		}
		vip = b.FrontendVIPs[0]
	}
	return key{kind: kindLoadBalancer, protocol: p.Protocol, addr: netip.AddrPortFrom(vip, p.ExternalPort)}, true
}

// normal returns a load balancer as it was given to HNS: a node port without address.
func normal(b hcn.LoadBalancer) hcn.LoadBalancer {
	if len(b.PortMappings) == 1 && b.PortMappings[0].Flags&hcn.LocalRoutedVIP != 0 {
		b.FrontendVIPs = nil
	}
	return b
}
