//go:build !linux

package ipvstakeover

import (
	"context"
	"net/netip"
)

// Adopt does nothing: only Linux has IPVS.
func Adopt([]netip.Prefix) error { return nil }

// Cleanup does nothing: only Linux has IPVS.
func Cleanup(context.Context, []netip.Prefix) error { return nil }
