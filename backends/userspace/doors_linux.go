package userspace

import (
	"hash/fnv"
	"net/netip"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// door is one of the addresses at which the backend listens: which of them a
// packet is handed to says where it comes from.
type door uint8

const (
	doorPod door = iota + 1
	doorNode
	doorOutside
	// To these, packets that come by a bridge are translated, for [TPROXY].
	doorBridgedPod
	doorBridgedOutside
)

func doors(c Capture) []door {
	all := []door{doorPod, doorNode, doorOutside}
	if c == TPROXY {
		all = append(all, doorBridgedPod, doorBridgedOutside)
	}
	return all
}

func (d door) origin() engine.Origin {
	return map[door]engine.Origin{
		doorPod: engine.Pod, doorNode: engine.Node, doorOutside: engine.Outside,
		doorBridgedPod: engine.Pod, doorBridgedOutside: engine.Outside,
	}[d]
}

// isTranslated reports whether destinations are translated to the address of a door.
func (d door) isTranslated(c Capture) bool { return c == Redirect || d >= doorBridgedPod }

// address gives the address of a door. It follows from the name of the identity,
// and nobody can send anything to it from elsewhere: in IPv4 it is a loopback
// address, in IPv6 one of the range that is never routed (RFC 6666).
func (d door) address(o *Options, fam nfnetlink.Family) netip.AddrPort {
	h := fnv.New32a()
	_, _ = h.Write([]byte(o.Identity.Name)) // a hash does not fail
	sum := h.Sum32()
	if fam == nfnetlink.IPv6 {
		a := [16]byte{0: 0x01, 10: byte(sum >> 24), 11: byte(sum >> 16), 12: byte(sum >> 8), 13: byte(sum), 15: byte(d)}
		return netip.AddrPortFrom(netip.AddrFrom16(a), o.Port)
	}
	first := byte(127) // of which the first quarter is left to others
	if d.isTranslated(o.Capture) {
		// Packets from elsewhere may not be translated to loopback addresses.
		// "This network" is local where we say so, and nowhere else.
		first = 0
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{first, 64 + byte(sum>>8)%128, byte(sum), byte(d)}), o.Port)
}

// doorsPrefix holds the addresses of all doors to which destinations are translated.
func doorsPrefix(o *Options, fam nfnetlink.Family) netip.Prefix {
	all := doors(o.Capture)
	a := all[len(all)-1].address(o, fam).Addr()
	return netip.PrefixFrom(a, a.BitLen()-8).Masked()
}
