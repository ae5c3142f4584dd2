package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Dump returns all objects of the default identity as text, which does not depend on the
// slots of endpoints.
func Dump(ctx context.Context) (string, error) {
	k, err := newKernel(Options{})
	if err != nil {
		return "", err
	}
	defer k.Close() //nolint:errcheck // it is used for reading only
	var lines []string
	for o, err := range k.List(ctx) {
		if err != nil {
			return "", err
		}
		lines = append(lines, describe(o))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

func describe(o object) string {
	value := fmt.Sprintf("%x", o.Value.hash)
	if o.Key.kind > kindBaseChain {
		value = text(o.Value.chain)
	}
	return o.Key.describe(text(o.Key.name)) + " " + value
}

func (k key) describe(name string) string {
	n := k.fam.AddrLen()
	addr, _ := netip.AddrFromSlice(k.addr[:n])
	eaddr, _ := netip.AddrFromSlice(k.eaddr[:n])
	return fmt.Sprintf("%v kind %d %s %s proto %d port %d pool %d: %s port %d", k.fam, k.kind, name, addr, k.proto, k.port, k.pool, eaddr, k.eport)
}
