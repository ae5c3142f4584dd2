//go:build !windows

package userspace

import (
	"fmt"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/addresses"
	"github.com/vipkit/vipkit/proxy"
)

// systemManager fails: only Windows has one.
func (*AddressOptions) systemManager(backends.Identity) (addresses.Manager, error) {
	return nil, fmt.Errorf("%w: the capture %v needs Windows", proxy.ErrUnsupported, Addresses)
}
