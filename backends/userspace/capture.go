package userspace

import (
	"errors"
	"fmt"

	"github.com/vipkit/vipkit/internal/enum"
)

// Capture says how packets get to the sockets of a backend. All captures serve the same
// Services; the documentation of the package says what each needs, and what it lacks.
type Capture uint8

// The captures.
const (
	// DefaultCapture is [TPROXY] on Linux, and [Addresses] on other systems.
	DefaultCapture Capture = iota
	// TPROXY marks packets by nf_tables, and delivers them with their destination
	// unchanged. It is the only capture with which endpoints see the client's address.
	TPROXY
	// Redirect translates destinations by nf_tables and connection tracking. It is for
	// kernels without TPROXY, and hosts without policy routing.
	Redirect
	// Addresses adds the addresses of Services to an interface, and listens at each frontend.
	// It is for Windows, and needs no other system than that. It rejects and drops in other
	// ways than netfilter, and cannot identify pods by their interface.
	Addresses
	// Loopback delivers no packets: the backend listens at node ports at the loopback addresses
	// that [proxy.NodePortAddresses] selects, and serves nothing else. It is for a second
	// [proxy.Runner] beside that of any other backend, and needs no privileges.
	Loopback
)

// String returns the name of the capture, as in "tproxy".
func (c Capture) String() string {
	switch c {
	case DefaultCapture:
		return "default"
	case TPROXY:
		return "tproxy"
	case Redirect:
		return "redirect"
	case Addresses:
		return "addresses"
	case Loopback:
		return "loopback"
	default:
		return fmt.Sprintf("capture %d", uint8(c))
	}
}

// MarshalText returns what String returns, so that JSON has names and not numbers. A value that
// has no name is an error.
func (c Capture) MarshalText() ([]byte, error) { return enum.Marshal(c, Loopback) }

// UnmarshalText reads what MarshalText returns.
func (c *Capture) UnmarshalText(text []byte) error {
	if string(text) == "routes" {
		return errors.New("routes, the capture by local routes and BPF, was removed: use tproxy, or redirect where TPROXY is missing")
	}
	return enum.Unmarshal(c, Loopback, text)
}

// known reports whether c is one of the captures.
func (c Capture) known() bool { return c <= Loopback }
