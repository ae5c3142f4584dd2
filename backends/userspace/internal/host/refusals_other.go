//go:build !windows

package host

import "net"

// reportRefusals does nothing: the system reports at a UDP socket that its peer refuses datagrams.
func reportRefusals(net.Conn) error { return nil }
