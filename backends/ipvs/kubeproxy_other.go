//go:build !linux

package ipvs

import (
	"context"
	"net/netip"
)

// AdoptKubeProxy does nothing: only Linux has IPVS.
func AdoptKubeProxy(context.Context, Options, []netip.Prefix) error { return nil }

// CleanupKubeProxy does nothing: only Linux has IPVS.
func CleanupKubeProxy(context.Context, Options, []netip.Prefix) error { return nil }
