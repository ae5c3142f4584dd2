package inspect

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

//go:embed page.html
var pageHTML string

// maxShown is how many service ports, and how many problems, the page shows at once.
const maxShown = 200

// maxEntries is after how many endpoints, frontends and source ranges no further service
// port is shown: JSON, which is for programs, has all of them.
const maxEntries = 20_000

// maxListed is how many endpoints, frontends and source ranges the HTML has of each.
const maxListed = 50

// Handler serves the page under any path: as HTML, or as JSON to whom accepts
// application/json. Held gives what the dataplane holds; the zero Snapshot while nothing
// is known. It is called for each request, by several goroutines at once. The title says
// what is shown, such as the kind of the dataplane.
//
// The parameters of the query are filter, a part of the names of service ports; and, to
// ask about a packet, protocol (TCP unless something else is said), source, interface and
// destination. A packet without an interface starts on the node.
//
// What checks find stands before the problems of API objects, such as the settings of the
// node that a backend finds (backends.NodeChecker). They are called as held is.
func Handler(title string, held func() proxy.Snapshot, checks ...func(proxy.Snapshot) []*proxy.Problem) http.Handler {
	text, err := template.New("page").Funcs(template.FuncMap{
		"endpoints": first[*endpoints.Endpoint], "frontends": first[proxy.Frontend], "destinations": first[proxy.Destination],
		"sources": first[netip.Prefix],
		"beyond":  func(n int) int { return max(0, n-maxListed) },
	}).Parse(pageHTML)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		query := r.URL.Query()
		value := func(name string) string { return strings.TrimSpace(query.Get(name)) }
		s := held()
		p := &page{Title: title, Generation: s.Generation(), Node: s.Node(), Total: s.Len(), Question: question{
			value("filter"), value("protocol"), value("source"), value("destination"), value("interface"),
		}}
		for _, check := range checks {
			p.list(slices.Values(check(s)))
		}
		p.fill(s)
		w.Header().Set("Vary", "Accept")
		if strings.Contains(r.Header.Get("Accept"), "application/json") {
			p.writeJSON(w)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'")
		_ = text.Execute(w, p) // Who asked notices what is missing.
	})
}

// first gives as much of a list as is shown of it.
func first[T any](all []T) []T { return all[:min(len(all), maxListed)] }

// page is what the page shows. Its fields are those of the JSON.
type page struct {
	Title        string
	Generation   uint64
	Node         *proxy.Node
	Question     question `json:"-"`
	Error        string
	Packet       *proxy.Packet
	Verdict      *proxy.Verdict
	Problems     []string
	ServicePorts []*proxy.ServicePort
	Total        int // of the service ports, before the filter
	Hidden       int // of those that the filter leaves
}

// writeJSON writes the page for programs. What was asked and has no answer is an error of
// the client's.
func (p *page) writeJSON(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if p.Error != "" {
		w.WriteHeader(http.StatusBadRequest)
	}
	_ = json.NewEncoder(w).Encode(p) // Who asked notices what is missing.
}

// question is what somebody wants to know of a packet.
type question struct{ Filter, Protocol, Source, Destination, Interface string }

func (p *page) fill(s proxy.Snapshot) {
	shown := 0
	for port := range s.All() {
		switch {
		case !strings.Contains(port.Name.String(), p.Question.Filter):
		case len(p.ServicePorts) < maxShown && shown < maxEntries:
			p.ServicePorts = append(p.ServicePorts, port)
			shown += entries(port)
		default:
			p.Hidden++
		}
	}
	p.list(s.Problems())
	if p.Question == (question{Filter: p.Question.Filter}) {
		return // Nobody asks about a packet.
	}
	packet, err := p.Question.packet(s)
	if err != nil {
		p.Error = err.Error()
		return
	}
	verdict := proxy.Route(s, packet)
	p.Packet, p.Verdict, p.Question.Protocol = &packet, &verdict, string(packet.Protocol)
}

// list has problems shown, as far as there is room.
func (p *page) list(problems iter.Seq[*proxy.Problem]) {
	for problem := range problems {
		if len(p.Problems) == maxShown {
			return
		}
		p.Problems = append(p.Problems, problem.Error())
	}
}

// entries is how much of a service port the JSON lists.
func entries(p *proxy.ServicePort) int {
	n := len(p.Cluster) + len(p.Local) + len(p.Draining)
	for i := range p.Frontends {
		n += 1 + len(p.Frontends[i].AllowedSources)
	}
	return n
}

// Protocols gives those to choose from.
func (p *page) Protocols() []v1.Protocol { return protocols() }

func protocols() []v1.Protocol { return []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} }

// packet gives the packet that is asked about. Without an interface it starts on
// the node, and without a protocol it is one of TCP.
func (q *question) packet(s proxy.Snapshot) (proxy.Packet, error) {
	protocol := v1.Protocol(strings.ToUpper(cmp.Or(q.Protocol, string(v1.ProtocolTCP))))
	p := proxy.Packet{Protocol: protocol, Interface: q.Interface, FromNode: q.Interface == ""}
	switch {
	case s.IsZero():
		return p, errors.New("nothing has been programmed yet")
	case !slices.Contains(protocols(), protocol):
		return p, fmt.Errorf("the protocol is one of %v, not %q", protocols(), q.Protocol)
	}
	to, err := netip.ParseAddrPort(q.Destination)
	if err != nil {
		return p, fmt.Errorf("the destination is an address and a port: %w", err)
	}
	p.Destination = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if q.Source != "" {
		a, err := netip.ParseAddr(q.Source)
		if err != nil {
			return p, fmt.Errorf("the source is an address: %w", err)
		}
		p.Source = netip.AddrPortFrom(a.Unmap(), 40000)
	} else if p.Source = netip.AddrPortFrom(ownAddress(s.Node(), p.Destination.Addr()), 40000); !p.Source.IsValid() {
		return p, errors.New("the node has no known address of the destination's family: name a source")
	}
	p.ToNode = isOwn(s.Node(), p.Destination.Addr())
	return p, nil
}

// ownAddress gives the node's first address of the family of another one.
func ownAddress(n *proxy.Node, like netip.Addr) netip.Addr {
	i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
	if i < 0 {
		return netip.Addr{}
	}
	return n.Addresses[i]
}

// isOwn reports whether the node has an address.
func isOwn(n *proxy.Node, a netip.Addr) bool {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return slices.Contains(n.Addresses, a)
	}
	return slices.Contains(n.Addresses, a) || slices.ContainsFunc(list, func(x net.Addr) bool {
		p, err := netip.ParsePrefix(x.String())
		return err == nil && p.Addr() == a
	})
}
