package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// protocol is the number of a transport protocol in IP headers.
type protocol uint8

const (
	protoUDP  = protocol(ipaddr.UDP)
	protoSCTP = protocol(ipaddr.SCTP)
)

func protocolOf(p v1.Protocol) protocol { return protocol(ipaddr.ProtocolNumber(p)) }

// errInterrupted means that a dump may have missed flows.
var errInterrupted = errors.New("the table changed during the dump")

// errOffloaded means that the kernel does not remove a flow, since a flowtable has it.
var errOffloaded = errors.New("the flow is offloaded")

// table is the connection tracking table of one network namespace.
type table interface {
	// dump visits the flows of the default zone that a filter selects, and maybe
	// further flows. The visitor must not call the table.
	dump(filter, func(flow)) error
	// remove removes one flow. A missing flow is no error.
	remove(flow) error
	close() error
	interfaces
}

type interfaces interface {
	// localAddresses returns the addresses of the node's interfaces.
	localAddresses() ([]netip.Addr, error)
}

// flow is one entry of the table.
type flow struct {
	proto protocol
	// source and dest are the addresses of the first packet, before translation.
	source, dest netip.AddrPort
	// server is the destination after translation.
	server netip.AddrPort
	// tuple and id identify the flow to the kernel.
	tuple, id []byte
}

// translated reports whether the flow does not go where it was sent.
func (f *flow) translated() bool { return f.server != f.dest }

// carried reports whether backend userspace carries the flow: captured packets are translated to one of its
// listeners, if at all. Its sessions follow Route themselves, and its rules refuse the first packet of a flow. Without
// the entry, an answer under way would be lost, or begin a flow from the frontend, to which the client's next
// datagrams would belong: they would not be captured.
func (f *flow) carried() bool { return ipaddr.IsListener(f.server.Addr()) }

// filter selects the flows of one family and protocol.
type filter struct {
	family v1.IPFamily
	proto  protocol
}

func (f filter) String() string { return fmt.Sprintf("%s flows of protocol %d", f.family, f.proto) }
