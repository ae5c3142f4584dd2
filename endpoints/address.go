package endpoints

import (
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// parseAddr parses the address of an endpoint in a slice of the given family.
func parseAddr(s string, family v1.IPFamily) (netip.Addr, error) {
	a, err := ipaddr.Parse(s)
	if err != nil {
		return a, err
	}
	if a.Is4() != (family == v1.IPv4Protocol) {
		return a, fmt.Errorf("%q is not an %s address", s, family)
	}
	return a, ipaddr.CheckEndpoint(a)
}
