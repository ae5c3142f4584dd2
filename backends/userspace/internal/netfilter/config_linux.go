package netfilter

import (
	"hash/fnv"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// Config configures a capture.
type Config struct {
	// Identity must be complete. Its mark has one bit.
	Identity backends.Identity
	// Families are the IP families to serve, Port is the port of all listeners.
	Families []v1.IPFamily
	Port     uint16
	// AwaitEndpoints says that connections to service ports without endpoints are
	// captured, and wait for an endpoint, and are not rejected.
	AwaitEndpoints bool
	// Redirect chooses translation of destinations; otherwise the capture is TPROXY.
	Redirect bool
}

// socketFamily returns the kernel's address family (AF_INET, AF_INET6) of an IP family.
func socketFamily(f v1.IPFamily) int {
	if f == v1.IPv6Protocol {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// serves reports whether an IP family is served.
func (r *renderer) serves(f v1.IPFamily) bool {
	return slices.Contains(r.Families, f) && !slices.Contains(r.unusable, f)
}

// served returns the IP families that are served.
func (r *renderer) served() []v1.IPFamily {
	all := ipaddr.Families()
	return slices.DeleteFunc(all[:], func(f v1.IPFamily) bool { return !r.serves(f) })
}

// Check is Check of [backends.TargetAbilities].
func (r *renderer) Check(_ backends.Env, port *proxy.ServicePort) error {
	if !r.serves(port.Name.Family) {
		return nil
	}
	return host.CheckProtocol(port)
}

// actionFor returns what the kernel must do with packets for which a route has action a;
// [proxy.Forward] means to capture them.
func (c *Config) actionFor(a proxy.Action) proxy.Action {
	if a == proxy.Reject && c.AwaitEndpoints {
		return proxy.Forward
	}
	return a
}

// listenAddr returns the n-th address to listen at. It is derived from the name of the
// identity, and other machines cannot send to it: in IPv4 it is a loopback address, in IPv6
// one of the discard-only range (RFC 6666). If translated is set, nf_tables translates
// destinations to it.
// [ipaddr.IsListener] knows the translated ones.
func (c *Config) listenAddr(f v1.IPFamily, n uint8, translated bool) netip.AddrPort {
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.Identity.Name)) // a hash does not fail
	sum := h.Sum32()
	if f == v1.IPv6Protocol {
		a := [16]byte{0: 0x01, 10: byte(sum >> 24), 11: byte(sum >> 16), 12: byte(sum >> 8), 13: byte(sum), 15: n}
		return netip.AddrPortFrom(netip.AddrFrom16(a), c.Port)
	}
	first := byte(127) // 127.0.0.0/10 is left to other programs
	if translated {
		// The kernel drops packets from other machines that are translated to loopback
		// addresses. 0.0.0.0/8 ("this network") is local only by a route.
		first = 0
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{first, 64 + byte(sum>>8)%128, byte(sum), n}), c.Port)
}
