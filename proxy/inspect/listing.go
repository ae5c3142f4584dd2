package inspect

import (
	"slices"
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
func list(s proxy.Snapshot, filter string, page int) listing {
	text := strings.ToLower(filter)
	pages, matching, count := [][]*proxy.ServicePort{nil}, 0, 0
	for p := range only(s.All(), func(p *proxy.ServicePort) bool { return matches(p, text) }) {
		last := len(pages) - 1
		if len(pages[last]) == maxPorts || count >= maxEntries {
			pages, last, count = append(pages, nil), last+1, 0
		}
		pages[last] = append(pages[last], p)
		matching++
		count += entries(p)
	}
	page = min(page, len(pages))
	return listing{ServicePorts: pages[page-1], Total: s.Len(), Matches: matching, Page: page, Pages: len(pages)}
}

// entries returns the number of endpoints, frontends and source ranges of a service port.
func entries(p *proxy.ServicePort) int {
	n := len(p.Cluster) + len(p.Local) + len(p.Draining)
	for i := range p.Frontends {
		n += 1 + len(p.Frontends[i].AllowedSources)
	}
	return n
}

// matches reports whether a text in lower case is a part of the name of a service port, or of address:port of a
// frontend or an endpoint.
func matches(p *proxy.ServicePort, text string) bool {
	has := func(e *endpoints.Endpoint) bool { return strings.Contains(e.Addr.String(), text) }
	return text == "" || strings.Contains(strings.ToLower(p.Name.String()), text) ||
		slices.ContainsFunc(p.Frontends, func(f proxy.Frontend) bool { return strings.Contains(f.Addr.String(), text) }) ||
		slices.ContainsFunc(p.Cluster, has) || slices.ContainsFunc(p.Local, has) || slices.ContainsFunc(p.Draining, has)
}
