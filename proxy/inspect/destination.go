package inspect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// destination reads address:port, or namespace/name:port of a Service, with the number or the name of the port. A
// name stands for the ClusterIP: the one in the IP family of like if that is valid and has one, otherwise the first one.
func destination(s proxy.Snapshot, text string, protocol v1.Protocol, like netip.Addr) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return ipaddr.Unmap(at), nil
	}
	name, port, _ := strings.Cut(text, ":")
	if !strings.Contains(name, "/") {
		return netip.AddrPort{}, errors.New("destination must be address:port, or namespace/name:port of a Service")
	}
	var found netip.AddrPort
	for p := range s.All() {
		i := slices.IndexFunc(p.Frontends, func(f proxy.Frontend) bool { return f.Kind == proxy.ClusterIP })
		if i < 0 || p.Name.NamespacedName.String() != name || p.Name.Protocol != protocol {
			continue
		}
		at := p.Frontends[i].Addr
		if port != p.Name.Port && port != strconv.Itoa(int(at.Port())) {
			continue
		}
		if !found.IsValid() || like.IsValid() && at.Addr().Is4() == like.Is4() {
			found = at
		}
	}
	if !found.IsValid() {
		return netip.AddrPort{}, fmt.Errorf("destination %q: the node serves no such port of %s at a ClusterIP", text, protocol)
	}
	return found, nil
}
