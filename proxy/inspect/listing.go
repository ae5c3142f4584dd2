package inspect

import (
	"slices"
	"strings"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// maxPorts is how many service ports a page of the list has.
const maxPorts = 100

// listing is one page of the service ports that match a filter.
type listing struct {
	ServicePorts []*proxy.ServicePort
	Total        int // all service ports
	Matches      int // those that match the filter
	Page, Pages  int
}

// list returns a page of the service ports that a filter selects, or the last one if there are fewer.
func list(s proxy.Snapshot, filter string, page int) listing {
	found := slices.Collect(only(s.All(), func(p *proxy.ServicePort) bool { return matches(p, strings.ToLower(filter)) }))
	pages := max(1, (len(found)+maxPorts-1)/maxPorts)
	page = min(page, pages)
	return listing{
		ServicePorts: found[(page-1)*maxPorts : min(len(found), page*maxPorts)],
		Total:        s.Len(), Matches: len(found), Page: page, Pages: pages,
	}
}

// matches reports whether a text in lower case is a part of the name of a service port, or of address:port of a
// frontend or an endpoint.
func matches(p *proxy.ServicePort, text string) bool {
	has := func(e *endpoints.Endpoint) bool { return strings.Contains(e.Addr.String(), text) }
	return text == "" || strings.Contains(strings.ToLower(p.Name.String()), text) ||
		slices.ContainsFunc(p.Frontends, func(f proxy.Frontend) bool { return strings.Contains(f.Addr.String(), text) }) ||
		slices.ContainsFunc(p.Cluster, has) || slices.ContainsFunc(p.Local, has) || slices.ContainsFunc(p.Draining, has)
}
