package inspect

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// A page of the list ends after maxPorts service ports, or after maxEntries endpoints, frontends
// and source ranges: JSON, which is for programs, has all entries of the ports on the page.
const (
	maxPorts   = 100
	maxEntries = 20_000
)

// listing is one page of the service ports that match a filter.
type listing struct {
	ServicePorts []*proxy.ServicePort
	Total        int // all service ports
	Matches      int // those that match the filter
	Page, Pages  int
}

// list returns a page of the service ports that a filter selects, or the last one if there are fewer.
func list(s proxy.Snapshot, f filter, page int) listing {
	l := listing{Total: s.Len(), Pages: 1}
	var current []*proxy.ServicePort
	count := 0
	for p := range s.All() {
		if !f.matches(p) {
			continue
		}
		if len(current) == maxPorts || count >= maxEntries {
			if l.Pages == page {
				l.ServicePorts, l.Page = current, l.Pages
			}
			l.Pages++
			current, count = nil, 0
		}
		l.Matches++
		current = append(current, p)
		count += entries(p)
	}
	if l.Page == 0 {
		l.ServicePorts, l.Page = current, l.Pages
	}
	return l
}

// entries returns the number of endpoints, frontends and source ranges of a service port.
func entries(p *proxy.ServicePort) int {
	n := len(p.Cluster) + len(p.Local) + len(p.Draining)
	for i := range p.Frontends {
		n += 1 + len(p.Frontends[i].AllowedSources)
	}
	return n
}

// maxWords is how many different words a filter may have: each is compared with all service ports.
const maxWords = 20

// filter selects service ports: all of its words must match.
type filter []word

// word matches a part of the name in any case and, if it reads as one, an address, a prefix of
// addresses, a port, or both address and port of a frontend or an endpoint.
type word struct {
	text   string // in lower case
	prefix netip.Prefix
	port   uint16
}

func newFilter(text string) filter {
	var f filter
	for field := range strings.FieldsSeq(strings.ToLower(text)) {
		w := word{text: field}
		if at, err := netip.ParseAddrPort(field); err == nil {
			w.prefix, w.port = single(at.Addr()), at.Port()
		} else if a, err := netip.ParseAddr(strings.Trim(field, "[]")); err == nil {
			w.prefix = single(a)
		} else if p, err := netip.ParsePrefix(field); err == nil {
			w.prefix = p.Masked()
		} else if n, err := strconv.ParseUint(strings.TrimPrefix(field, ":"), 10, 16); err == nil {
			w.port = uint16(n)
		}
		if !slices.Contains(f, w) {
			f = append(f, w)
		}
	}
	return f
}

func single(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

func (f filter) matches(p *proxy.ServicePort) bool {
	if len(f) == 0 {
		return true
	}
	name := strings.ToLower(p.Name.String())
	return !slices.ContainsFunc(f, func(w word) bool { return !strings.Contains(name, w.text) && !w.matchesAddress(p) })
}

func (w word) matchesAddress(p *proxy.ServicePort) bool {
	if !w.prefix.IsValid() && w.port == 0 {
		return false
	}
	has := func(e *endpoints.Endpoint) bool { return w.matches(e.Addr) }
	return slices.ContainsFunc(p.Frontends, func(f proxy.Frontend) bool { return w.matches(f.Addr) }) ||
		slices.ContainsFunc(p.Cluster, has) || slices.ContainsFunc(p.Local, has) || slices.ContainsFunc(p.Draining, has)
}

func (w word) matches(at netip.AddrPort) bool {
	return (w.port == 0 || w.port == at.Port()) && (!w.prefix.IsValid() || w.prefix.Contains(at.Addr()))
}
