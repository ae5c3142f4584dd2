package inspect

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// maxNamed bounds the choices that an error names.
const maxNamed = 5

// destination reads address:port, or the name of a Service as people and cluster DNS write it,
// with the number or the name of a port unless the Service has only one. A name stands for the
// ClusterIP: the one in the IP family of like if that is valid, otherwise the first one.
func destination(s proxy.Snapshot, text string, protocol v1.Protocol, like netip.Addr) (netip.AddrPort, error) {
	if text == "" {
		return netip.AddrPort{}, errors.New("destination is required: address:port, or a Service such as default/web:80")
	}
	if at, err := netip.ParseAddrPort(text); err == nil {
		return ipaddr.Unmap(at), nil
	}
	if _, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		return netip.AddrPort{}, fmt.Errorf("destination %q has no port: write address:port, and an IPv6 address in brackets", text)
	}
	name, port, err := splitName(text)
	if err != nil {
		return netip.AddrPort{}, err
	}
	found := candidates(s, name, like)
	if len(found) == 0 {
		return netip.AddrPort{}, fmt.Errorf("destination %q is neither address:port nor a Service that is served here", text)
	}
	if other := slices.IndexFunc(found, func(p *proxy.ServicePort) bool { return p.Name.Namespace != found[0].Name.Namespace }); other > 0 {
		return netip.AddrPort{}, fmt.Errorf("destination %q: Services of this name are in the namespaces %s, %s and perhaps more: write namespace/name",
			text, found[0].Name.Namespace, found[other].Name.Namespace)
	}
	return choose(found, text, port, protocol)
}

// choose returns the ClusterIP and port of one of the ports of a Service.
func choose(ports []*proxy.ServicePort, text, port string, protocol v1.Protocol) (netip.AddrPort, error) {
	var found []netip.AddrPort
	var known []string
	for _, p := range ports {
		i := slices.IndexFunc(p.Frontends, func(f proxy.Frontend) bool { return f.Kind == proxy.ClusterIP })
		if i < 0 {
			continue
		}
		at := p.Frontends[i].Addr
		known = append(known, fmt.Sprintf("%s %s %d", p.Name.Protocol, p.Name.Port, at.Port()))
		if number := strconv.Itoa(int(at.Port())); p.Name.Protocol == protocol && (port == "" || port == number || strings.EqualFold(port, p.Name.Port)) {
			found = append(found, at)
		}
	}
	switch {
	case len(found) == 1 || len(found) > 1 && port != "" || len(found) > 1 && sameService(found):
		return found[0], nil
	case len(known) > maxNamed:
		known = append(known[:maxNamed], "...")
	}
	return netip.AddrPort{}, fmt.Errorf("destination %q: choose a port and its protocol: %s", text, strings.Join(known, ", "))
}

// sameService reports whether all addresses have one port: they are those of two IP families.
func sameService(all []netip.AddrPort) bool {
	return !slices.ContainsFunc(all, func(a netip.AddrPort) bool { return a.Port() != all[0].Port() })
}

// splitName splits namespace/name, name, name.namespace or name.namespace.svc.DOMAIN, with a port
// or without.
func splitName(text string) (name proxy.ServicePortName, port string, err error) {
	host := strings.ToLower(text)
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host, port = host[:i], host[i+1:]
	}
	host = strings.TrimSuffix(host, ".")
	namespace, short, ok := strings.Cut(host, "/")
	if !ok {
		labels := strings.Split(host, ".")
		if len(labels) > 2 && labels[2] != "svc" {
			return name, "", fmt.Errorf("destination %q is not the name of a Service in cluster DNS, such as web.default.svc.cluster.local", text)
		}
		if short, namespace = labels[0], ""; len(labels) > 1 {
			namespace = labels[1]
		}
	}
	if short == "" || net.ParseIP(short) != nil {
		return name, "", fmt.Errorf("destination must be address:port or the name of a Service, not %q", text)
	}
	name.Namespace, name.Name = namespace, short
	return name, port, nil
}

// candidates returns the ports of the Services of a name, in any namespace if it has none: those
// of the IP family of like, if that is valid and has any.
func candidates(s proxy.Snapshot, name proxy.ServicePortName, like netip.Addr) []*proxy.ServicePort {
	var all, matching []*proxy.ServicePort
	for p := range s.All() {
		if p.Name.Name != name.Name || name.Namespace != "" && p.Name.Namespace != name.Namespace {
			continue
		}
		all = append(all, p)
		if like.IsValid() && like.Is4() == (p.Name.Family == v1.IPv4Protocol) {
			matching = append(matching, p)
		}
	}
	if len(matching) > 0 {
		return matching
	}
	return all
}
