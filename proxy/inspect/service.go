package inspect

import (
	"iter"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// serviceView is the page of one Service.
type serviceView struct {
	Name             string // namespace/name
	Ports            []portView
	Problems, Limits []string
}

// portView is a service port on the page of its Service.
type portView struct {
	*proxy.ServicePort
	// Refused is why the last sync could not program the port.
	Refused string
	// All are the endpoints of the port, with the reasons why pools have them or not.
	All []explained
}

type explained struct {
	*endpoints.Endpoint
	endpoints.Explanation
}

// Question returns the query that asks about a packet to the port, as the part of a URL; it is empty
// for a port without a ClusterIP.
func (v portView) Question() string {
	i := slices.IndexFunc(v.Frontends, func(f proxy.Frontend) bool { return f.Kind == proxy.ClusterIP })
	if i < 0 {
		return ""
	}
	return "?" + url.Values{
		"destination": {v.Frontends[i].Addr.String()}, "protocol": {string(v.Name.Protocol)},
	}.Encode()
}

// service returns the page of a Service, of a name such as default/web.
func (p *Page) service(name string, last proxy.Sync) *serviceView {
	namespace, short, _ := strings.Cut(name, "/")
	v := &serviceView{Name: name}
	for port := range last.Applied.All() {
		if port.Name.Namespace == namespace && port.Name.Name == short {
			v.Ports = append(v.Ports, p.servicePort(port, last))
		}
	}
	for name := range neverProgrammed(last) {
		if port, ok := last.Snapshot.Get(name); ok && name.Namespace == namespace && name.Name == short {
			v.Ports = append(v.Ports, p.servicePort(port, last))
		}
	}
	mine := func(x *proxy.Problem) bool {
		return x.Kind == "Service" && x.Namespace == namespace && x.Name == short
	}
	v.Problems = appendTexts(nil, only(last.Applied.Problems(), mine))
	v.Limits = appendTexts(nil, only(slices.Values(last.Limits), mine))
	return v
}

// neverProgrammed yields the refused service ports that the dataplane does not hold in an earlier
// form either, in the order of names.
func neverProgrammed(last proxy.Sync) iter.Seq[proxy.ServicePortName] {
	names := slices.SortedFunc(maps.Keys(last.Refused), proxy.ServicePortName.Compare)
	return only(slices.Values(names), func(name proxy.ServicePortName) bool {
		_, programmed := last.Applied.Get(name)
		return !programmed
	})
}

// refusal is a service port that could not be programmed.
type refusal struct {
	Name  proxy.ServicePortName
	Error string
}

// refusals returns the first ones of a sync, in the order of names.
func refusals(last proxy.Sync) (all []refusal) {
	for _, name := range first(maxShown, slices.SortedFunc(maps.Keys(last.Refused), proxy.ServicePortName.Compare)) {
		all = append(all, refusal{name, last.Refused[name].Error()})
	}
	return all
}

func (p *Page) servicePort(port *proxy.ServicePort, last proxy.Sync) portView {
	out := portView{ServicePort: port}
	if err := last.Refused[port.Name]; err != nil {
		out.Refused = err.Error()
	}
	if tracker := p.tracker.Load(); tracker != nil {
		all, why := tracker.ExplainEndpoints(port.Name)
		for i, e := range all {
			out.All = append(out.All, explained{e, why[i]})
		}
	}
	return out
}
