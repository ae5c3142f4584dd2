//go:build !linux

package host

import "net"

// Sockets opens sockets: the system has one network alone.
type Sockets struct{}

// OpenSockets returns Sockets.
func OpenSockets() (*Sockets, error) { return &Sockets{}, nil }

// Close does nothing.
func (*Sockets) Close() error { return nil }

// Do calls a function that makes sockets.
func (*Sockets) Do(f func() error) error { return f() }

// Dial has dial make one connection by a dialer.
func (*Sockets) Dial(d *net.Dialer, dial func(*net.Dialer) error) error { return dial(d) }
