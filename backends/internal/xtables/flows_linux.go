package xtables

import (
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// findFrontends records the frontends that rules translate: those that match a port, of an address or of any one.
// TCP needs none. A comment may contain anything but quotes, and is before the port.
func (k *kernel) findFrontends(s saved) {
	k.finds.Take() // of an earlier listing
	form := regexp.MustCompile(`^(?:-d (\S+)/(?:32|128) )?-p (udp|sctp) (?:.* )?--dport (\d+) `)
	for ref, rules := range s {
		if ref.table != NAT || !k.names.IsOpen(ref.name) {
			continue
		}
		for _, rule := range rules {
			m := form.FindStringSubmatch(rule)
			if m == nil {
				continue
			}
			addr, _ := netip.ParseAddr(m[1]) // none for a node port
			if port, err := strconv.ParseUint(m[3], 10, 16); err == nil {
				k.finds.Add(k.Family.Family, ipaddr.ProtocolNumber(v1.Protocol(strings.ToUpper(m[2]))), netip.AddrPortFrom(addr, uint16(port)))
			}
		}
	}
}
