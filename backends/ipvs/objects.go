package ipvs

import (
	"net/netip"
	"unique"

	"github.com/vipkit/vipkit/backends"
)

// kind is the kind of an object, in the order of creation. Packets to a frontend get in with
// the last kind: until then no set of frontends has it, and the rules reject them.
type kind int8

const (
	kindRules       kind = iota - 1 // all constant rules
	kindEntry                       // entry of a set that restricts packets
	kindFirewall                    // entry of the set of frontends that only allowed sources may use
	kindAddress                     // address at the dummy device
	kindServer                      // virtual server
	kindDestination                 // real server of a virtual server
	kindFrontend                    // entry of a set of frontends, or of the set that marks packets
)

// key names an object.
type key struct {
	kind kind
	// set is the set of an entry.
	set setID
	// protocol and addr name a frontend; the protocol is the kernel's number. For an address, and
	// for an entry of the set of addresses, the port is 0.
	protocol uint8
	// inside distinguishes the virtual server for marked packets from inside the cluster.
	inside bool
	addr   netip.AddrPort
	// real is the address of a destination.
	real netip.AddrPort
	// source is the source in an entry of the set of allowed sources.
	source netip.Prefix
}

// value is the content of an object; the zero value for sets and addresses.
type value struct {
	// scheduler, flags and timeout in seconds belong to a virtual server.
	scheduler      string
	flags, timeout uint32
	// weight belongs to a destination, which goes at once, without draining, if atOnce is set.
	weight uint32
	atOnce bool
	// rules are the constant rules as text.
	rules unique.Handle[string]
	// wrong says that another program has changed what the other fields do not describe.
	// Render never sets it.
	wrong bool
}

type (
	object = backends.Object[key, value]
	op     = backends.Op[key, value]
)

// Rank implements [backends.Key].
func (k key) Rank() int { return int(k.kind) }

// Shared implements [backends.Key]: ports of a Service have one address, and one health check node port.
func (k key) Shared() bool { return k.isAddress() || k.set == setHealthChecks }

// isAddress reports whether k is an address of the device, or its entry in the set of these.
func (k key) isAddress() bool { return k.kind == kindAddress || k.set == setAddresses }

// frontend names a frontend at one address.
type frontend struct{ key }

func frontendOf(k *key) frontend {
	return frontend{key{protocol: k.protocol, addr: k.addr}}
}
