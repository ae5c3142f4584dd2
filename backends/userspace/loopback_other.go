//go:build !linux

package userspace

import "github.com/vipkit/vipkit/backends/userspace/internal/addresses"

// openNamespace returns what every thread is in.
func openNamespace() (addresses.Namespace, error) { return addresses.Anywhere{}, nil }
