package userspace

import "fmt"

// Capture is a way to lead packets to a backend. All ways serve the same Services;
// what each needs and what it lacks, the documentation of the package says.
type Capture uint8

// The ways.
const (
	// TPROXY marks packets by nf_tables, and hands them over as they are. It is
	// the only way by which endpoints see the client's address.
	TPROXY Capture = iota
	// Redirect has nf_tables and connection tracking translate the
	// destination, where TPROXY or policy routing cannot be had.
	Redirect
	// LocalRoutes makes the addresses of Services local ones, and chooses
	// sockets by a BPF program, without any netfilter. It refuses what it does
	// not serve in its own ways, and cannot tell pods by their interface.
	LocalRoutes
)

// String gives the name of the way, as in "tproxy".
func (c Capture) String() string {
	switch c {
	case TPROXY:
		return "tproxy"
	case Redirect:
		return "redirect"
	case LocalRoutes:
		return "routes"
	default:
		return fmt.Sprintf("capture %d", uint8(c))
	}
}

// known reports whether there is such a way.
func (c Capture) known() bool { return c <= LocalRoutes }
