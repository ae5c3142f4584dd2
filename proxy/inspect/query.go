package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/proxy"
)

// query has the parameters of a request.
type query struct {
	Filter, Service                          string
	Page                                     int // from 1
	Protocol, Source, Interface, Destination string
}

func newQuery(parameters url.Values) query {
	value := func(name string) string { return strings.TrimSpace(parameters.Get(name)) }
	q := query{
		Filter: value("filter"), Service: value("service"),
		Protocol: value("protocol"), Source: value("source"), Interface: value("interface"), Destination: value("destination"),
	}
	number, err := strconv.Atoi(value("page"))
	if q.Page = number; err != nil || number < 1 {
		q.Page = 1
	}
	return q
}

// asks reports whether the query is about a packet.
func (q *query) asks() bool { return q.Source+q.Interface+q.Destination+q.Protocol != "" }

// At returns the query with another page, as the part of a URL.
func (q query) At(page int) string {
	values := url.Values{}
	for name, value := range map[string]string{
		"filter": q.Filter, "protocol": q.Protocol, "source": q.Source, "interface": q.Interface, "destination": q.Destination,
		"page": strconv.Itoa(page),
	} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return "?" + values.Encode()
}

// answer is the verdict about a packet.
type answer struct {
	Error   string
	Packet  *proxy.Packet
	Verdict *proxy.Verdict
}

func (q *query) answer(s proxy.Snapshot) answer {
	packet, err := q.packet(s)
	if err != nil {
		return answer{Error: err.Error()}
	}
	verdict := proxy.Route(s, packet)
	q.Protocol = string(packet.Protocol)
	return answer{Packet: &packet, Verdict: &verdict}
}

func protocols() []v1.Protocol { return []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} }

// clientPort is the port that clients without a given one use.
const clientPort = 40000

// packet returns the packet of the query. Without an interface it starts on the node, and
// without a protocol it is TCP.
func (q *query) packet(s proxy.Snapshot) (proxy.Packet, error) {
	protocol := v1.Protocol(strings.ToUpper(cmp.Or(q.Protocol, string(v1.ProtocolTCP))))
	p := proxy.Packet{Protocol: protocol, Interface: q.Interface, FromNode: q.Interface == ""}
	switch {
	case s.IsZero():
		return p, errors.New("nothing has been programmed yet")
	case !slices.Contains(protocols(), protocol):
		return p, fmt.Errorf("protocol must be one of %v, not %q", protocols(), q.Protocol)
	}
	var err error
	if q.Source != "" {
		if p.Source, err = source(q.Source); err != nil {
			return p, err
		}
	}
	if p.Destination, err = destination(s, q.Destination, protocol, p.Source.Addr()); err != nil {
		return p, err
	}
	if q.Source == "" {
		if p.Source = netip.AddrPortFrom(ownAddress(s.Node(), p.Destination.Addr()), clientPort); !p.Source.IsValid() {
			return p, errors.New("source is required: the node has no known address in the IP family of the destination")
		}
	}
	p.ToNode = isOwn(s, p.Destination.Addr())
	return p, nil
}

// source reads an address, with a port or without.
func source(text string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(text); err == nil {
		return ipaddr.Unmap(at), nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("source must be an IP address, or address:port, not %q", text)
	}
	return netip.AddrPortFrom(a.Unmap(), clientPort), nil
}

// ownAddress returns the address by which the node reaches another address: the first one of its IP
// family, or the usual loopback address.
func ownAddress(n *proxy.Node, like netip.Addr) netip.Addr {
	switch {
	case like.IsLoopback() && like.Is4():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case like.IsLoopback():
		return netip.IPv6Loopback()
	}
	i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
	if i < 0 {
		return netip.Addr{}
	}
	return n.Addresses[i]
}
