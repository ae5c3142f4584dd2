package userspace

import (
	"github.com/vipkit/vipkit/backends/userspace/internal/addresses"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
)

// openNamespace returns the network namespace of the calling thread.
func openNamespace() (addresses.Namespace, error) {
	s, err := host.OpenSockets()
	if err != nil {
		return nil, err
	}
	return s, nil
}
