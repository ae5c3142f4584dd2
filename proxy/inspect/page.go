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

// maxEntries is the number of endpoints, frontends and source ranges after which no further
// service port is shown: JSON, which is for programs, has all entries of those shown.
const maxEntries = 20_000

// maxListed bounds each list of endpoints, frontends or source ranges in the HTML.
const maxListed = 50

// Handler serves the page under any path: as HTML, or as JSON to a client that accepts
// application/json. The function last returns the last Sync of a Runner whose Applied is not
// the zero Snapshot, and the zero Sync while nothing is known. It is called for each
// request, from several goroutines at once. The title says what is shown, such as the kind
// of the dataplane.
//
// The parameters of the query are filter, a part of the names of service ports; and, for
// the verdict about a packet, protocol (default TCP), source, interface and destination. A
// packet without an interface starts on the node.
//
// The problems that checks return, such as the settings of the node that a backend finds
// (backends.NodeChecker), are listed before those of API objects. Checks are called like
// last. The limits with which the dataplane serves ports are listed apart from both.
func Handler(title string, last func() proxy.Sync, checks ...func(proxy.Snapshot) []*proxy.Problem) http.Handler {
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
		sync := last()
		s := sync.Applied
		p := &page{Title: title, Generation: s.Generation(), Node: s.Node(), Total: s.Len(), Question: question{
			value("filter"), value("protocol"), value("source"), value("destination"), value("interface"),
		}}
		for _, check := range checks {
			p.Problems = list(p.Problems, slices.Values(check(s)))
		}
		p.Limits = list(nil, slices.Values(sync.Limits))
		p.fill(s)
		w.Header().Set("Vary", "Accept")
		if strings.Contains(r.Header.Get("Accept"), "application/json") {
			p.writeJSON(w)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'")
		_ = text.Execute(w, p) // The client notices a truncated response.
	})
}

// first returns the part of a list that the HTML shows.
func first[T any](all []T) []T { return all[:min(len(all), maxListed)] }

// page is the data of the page. Its fields are those of the JSON.
type page struct {
	Title        string
	Generation   uint64
	Node         *proxy.Node
	Question     question `json:"-"`
	Error        string
	Packet       *proxy.Packet
	Verdict      *proxy.Verdict
	Problems     []string
	Limits       []string
	ServicePorts []*proxy.ServicePort
	Total        int // all service ports
	Hidden       int // service ports that match the filter and are not shown
}

// writeJSON writes the page for programs. An invalid query is an error of the client.
func (p *page) writeJSON(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if p.Error != "" {
		w.WriteHeader(http.StatusBadRequest)
	}
	_ = json.NewEncoder(w).Encode(p) // The client notices a truncated response.
}

// question has the parameters of the query.
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
	p.Problems = list(p.Problems, s.Problems())
	if p.Question == (question{Filter: p.Question.Filter}) {
		return // The query has no packet.
	}
	packet, err := p.Question.packet(s)
	if err != nil {
		p.Error = err.Error()
		return
	}
	verdict := proxy.Route(s, packet)
	p.Packet, p.Verdict, p.Question.Protocol = &packet, &verdict, string(packet.Protocol)
}

// list appends the texts of problems, up to maxShown. Ports of one Service may have the
// same limit, which is shown once.
func list(shown []string, problems iter.Seq[*proxy.Problem]) []string {
	for problem := range problems {
		if len(shown) == maxShown {
			break
		}
		if text := problem.Error(); len(shown) == 0 || shown[len(shown)-1] != text {
			shown = append(shown, text)
		}
	}
	return shown
}

// entries returns the number of endpoints, frontends and source ranges of a service port.
func entries(p *proxy.ServicePort) int {
	n := len(p.Cluster) + len(p.Local) + len(p.Draining)
	for i := range p.Frontends {
		n += 1 + len(p.Frontends[i].AllowedSources)
	}
	return n
}

// Protocols returns the choices of the form.
func (p *page) Protocols() []v1.Protocol { return protocols() }

func protocols() []v1.Protocol { return []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} }

// packet returns the packet of the query. Without an interface it starts on the node, and
// without a protocol it is TCP.
func (q *question) packet(s proxy.Snapshot) (proxy.Packet, error) {
	protocol := v1.Protocol(strings.ToUpper(cmp.Or(q.Protocol, string(v1.ProtocolTCP))))
	p := proxy.Packet{Protocol: protocol, Interface: q.Interface, FromNode: q.Interface == ""}
	switch {
	case s.IsZero():
		return p, errors.New("nothing has been programmed yet")
	case !slices.Contains(protocols(), protocol):
		return p, fmt.Errorf("protocol must be one of %v, not %q", protocols(), q.Protocol)
	}
	to, err := netip.ParseAddrPort(q.Destination)
	if err != nil {
		return p, fmt.Errorf("destination must be an IP address and a port: %w", err)
	}
	p.Destination = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if q.Source != "" {
		a, err := netip.ParseAddr(q.Source)
		if err != nil {
			return p, fmt.Errorf("source must be an IP address: %w", err)
		}
		p.Source = netip.AddrPortFrom(a.Unmap(), 40000)
	} else if p.Source = netip.AddrPortFrom(ownAddress(s.Node(), p.Destination.Addr()), 40000); !p.Source.IsValid() {
		return p, errors.New("source is required: the node has no known address in the IP family of the destination")
	}
	p.ToNode = isOwn(s.Node(), p.Destination.Addr())
	return p, nil
}

// ownAddress returns the node's first address in the IP family of another address.
func ownAddress(n *proxy.Node, like netip.Addr) netip.Addr {
	i := slices.IndexFunc(n.Addresses, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
	if i < 0 {
		return netip.Addr{}
	}
	return n.Addresses[i]
}

// isOwn reports whether an address is one of the node.
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
