package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Frontends are the frontends of a snapshot. Where connections of the backend itself may be
// captured, endpoints that are frontends must be refused: such a connection could loop until the
// node has no resources left.
type Frontends struct {
	// isLocal reports whether an address is one of the node's own.
	isLocal func(netip.Addr) bool

	mu        sync.RWMutex
	frontends map[frontend]int // the number of service ports that have each
	node      *proxy.Node
}

type frontend struct {
	protocol v1.Protocol
	addr     netip.AddrPort
}

// NewFrontends returns no frontends; [Frontends.Follow] adds them. The function reports whether an
// address is one of the node's own.
func NewFrontends(isLocal func(netip.Addr) bool) *Frontends {
	return &Frontends{isLocal: isLocal, frontends: map[frontend]int{}}
}

var errFrontend = errors.New("the endpoint is itself an address of a Service: the connection would loop")

// Refuse returns why a connection must not be made; nil if it may.
func (f *Frontends) Refuse(to engine.Dial) error {
	if f.IsFrontend(to.Protocol, to.To) {
		return fmt.Errorf("%v: %w", to.To, errFrontend)
	}
	return nil
}

// Follow updates the frontends by the changes between two snapshots.
func (f *Frontends) Follow(old, next proxy.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.node = next.Node()
	for change := range next.Changes(old) {
		f.count(change.New, 1)
		f.count(change.Old, -1)
	}
}

func (f *Frontends) count(p *proxy.ServicePort, n int) {
	if p == nil {
		return
	}
	for i := range p.Frontends {
		x := frontend{p.Name.Protocol, p.Frontends[i].Addr}
		if f.frontends[x] += n; f.frontends[x] == 0 {
			delete(f.frontends, x)
		}
	}
}

// IsFrontend reports whether an address and port is a frontend, or a node port at any address
// of this node, which may have more addresses than its Node object lists.
func (f *Frontends) IsFrontend(protocol v1.Protocol, to netip.AddrPort) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.frontends[frontend{protocol, to}] > 0 {
		return true
	}
	anywhere := ipaddr.Unspecified(ipaddr.FamilyOf(to.Addr()))
	return f.frontends[frontend{protocol, netip.AddrPortFrom(anywhere, to.Port())}] > 0 &&
		f.node != nil && (slices.Contains(f.node.Addresses, to.Addr()) || f.isLocal(to.Addr()))
}

var errSCTP = errors.New("SCTP is not supported by the userspace backend, which has sockets for TCP and UDP only")

// CheckProtocol returns why a service port cannot be served because of its protocol.
func CheckProtocol(port *proxy.ServicePort) error {
	if port.Name.Protocol == v1.ProtocolSCTP {
		return errSCTP
	}
	return nil
}
