//go:build !linux

package ipvs

import (
	"context"
	"fmt"

	"github.com/vipkit/vipkit/proxy"
)

// New reports [proxy.ErrUnsupported]: only Linux has IPVS.
func New(Options) (proxy.Backend, error) {
	return nil, errOtherSystem()
}

// Cleanup does nothing: only Linux has IPVS.
func Cleanup(context.Context, Options) error { return nil }

// PrepareNode reports [proxy.ErrUnsupported]: only Linux has IPVS.
func PrepareNode(context.Context, Options) error { return errOtherSystem() }

func errOtherSystem() error {
	return fmt.Errorf("ipvs: %w: unsupported on this operating system", proxy.ErrUnsupported)
}
