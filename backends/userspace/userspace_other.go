//go:build !linux

package userspace

import (
	"context"
	"fmt"

	"github.com/vipkit/vipkit/proxy"
)

// Backend is a [proxy.Backend] that carries the traffic of Services itself.
type Backend struct{}

// New reports [proxy.ErrUnsupported]: traffic can be captured on Linux only.
func New(Options) (*Backend, error) {
	return nil, fmt.Errorf("userspace: %w: not on this operating system", proxy.ErrUnsupported)
}

// Apply implements [proxy.Backend].
func (*Backend) Apply(context.Context, proxy.Snapshot, proxy.Snapshot) error {
	return proxy.ErrUnsupported
}

// Cleanup implements [proxy.Backend].
func (*Backend) Cleanup(context.Context) error { return proxy.ErrUnsupported }

// Drain does nothing.
func (*Backend) Drain(context.Context) error { return nil }

// Close does nothing.
func (*Backend) Close() error { return nil }

// Operations implements [proxy.OperationCounter].
func (*Backend) Operations() uint64 { return 0 }

// Drifted implements [proxy.DriftChecker].
func (*Backend) Drifted(context.Context) bool { return false }

// WaitDrift implements [proxy.DriftChecker].
func (*Backend) WaitDrift(context.Context) error { return proxy.ErrUnsupported }

// Stats gives no numbers.
func (*Backend) Stats() Stats { return Stats{} }
