package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Dump writes all objects of the default identity, in a form that does not
// depend on the slots that endpoints stand in.
func Dump(ctx context.Context) (string, error) {
	k, err := newKernel(Options{})
	if err != nil {
		return "", err
	}
	defer k.close() //nolint:errcheck // it was used for reading only
	var lines []string
	for o, err := range k.List(ctx) {
		if err != nil {
			return "", err
		}
		lines = append(lines, k.describe(o))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), nil
}

// close is for tests, which make many. Programs keep theirs until they end.
func (k *kernel) close() error { return errors.Join(k.monitor.Close(), k.conn.Close()) }

func (k *kernel) describe(o object) string {
	value := fmt.Sprintf("%x", uint64(o.Value))
	if o.Key.kind > kindChain {
		value = k.book.names.of(o.Key.fam).text(o.Value.chain())
	}
	return o.Key.describe(k.book.names.of(o.Key.fam).text(o.Key.name)) + " " + value
}

func (k key) describe(name string) string {
	n := k.fam.addrLen()
	addr, _ := netip.AddrFromSlice(k.addr[:n])
	eaddr, _ := netip.AddrFromSlice(k.eaddr[:n])
	return fmt.Sprintf("%s kind %d %s level %d: %s proto %d port %d pool %d: %s port %d", k.fam.api(), k.kind, name, k.level, addr, k.proto, k.port, k.pool, eaddr, k.eport)
}
