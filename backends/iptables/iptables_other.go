//go:build !linux

package iptables

import (
	"fmt"

	"github.com/vipkit/vipkit/proxy"
)

// New reports [proxy.ErrUnsupported]: only Linux has iptables.
func New(Options) (proxy.Backend, error) {
	return nil, fmt.Errorf("iptables: %w: unsupported on this operating system", proxy.ErrUnsupported)
}
