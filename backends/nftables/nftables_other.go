//go:build !linux

package nftables

import (
	"fmt"

	"github.com/vipkit/vipkit/proxy"
)

// New reports [proxy.ErrUnsupported]: only Linux has nf_tables.
func New(Options) (proxy.Backend, error) {
	return nil, fmt.Errorf("nftables: %w: unsupported on this operating system", proxy.ErrUnsupported)
}
