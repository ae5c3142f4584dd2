package userspace

import "github.com/vipkit/vipkit/backends/userspace/internal/host"

// openLoopbackSystem opens sockets in the network namespace of the calling thread. The dialer knows
// no frontends, and so refuses none: whatever serves them does not lead to loopback addresses.
func openLoopbackSystem() (loopbackSystem, error) {
	s, err := host.OpenSockets()
	if err != nil {
		return loopbackSystem{}, err
	}
	return loopbackSystem{Closer: s, dialer: host.NewNodeDialer(s), inside: s.Do}, nil
}
