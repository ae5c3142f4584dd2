package endpoints

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// content is the part of an EndpointSlice that the Cache uses. Its strings belong to the
// API object. A slice that contributes nothing has no ports or no records.
type content struct {
	service types.NamespacedName
	family  v1.IPFamily
	// ports are sorted and without duplicates.
	ports []portNumber
	// records are sorted; several may have one address.
	records []record
	// hinted says that some record has hints.
	hinted bool
}

// portNumber is a port of a slice.
type portNumber struct {
	name     string
	protocol v1.Protocol
	number   uint16
}

func (p portNumber) compare(o portNumber) int {
	if c := strings.Compare(p.name, o.name); c != 0 {
		return c
	}
	if c := strings.Compare(string(p.protocol), string(o.protocol)); c != 0 {
		return c
	}
	return cmp.Compare(p.number, o.number)
}

// record is an endpoint with its hints; setNumber adds the port number.
type record struct {
	Endpoint
	hints rawHints
}

func (r *record) compare(o *record) int {
	if c := r.Endpoint.Compare(&o.Endpoint); c != 0 {
		return c
	}
	return strings.Compare(r.hints, o.hints)
}

// reader turns slices into content, and reuses its memory.
type reader struct {
	view  View
	names names
	content
	errs fieldErrors
	// order, text and recent are buffers for reading endpoints.
	order  []addrIndex
	text   []byte
	recent rawHints
}

// addrIndex is an address with its index in the list of a slice. Sorting these is
// cheaper than sorting records.
type addrIndex struct {
	addr  netip.Addr
	index int
}

// read fills in the content of a slice, and returns an error for each part that it
// ignores.
func (r *reader) read(s *discoveryv1.EndpointSlice) error {
	r.errs = nil
	if r.readOwner(s) {
		r.readPorts(s.Ports[:r.portsWithinLimit(s)])
		r.readEndpoints(s.Endpoints)
	}
	return r.errs.join()
}

// maxRecords limits the number of endpoints times the number of ports of one slice, so that one
// object needs 160 MB at most. The API allows 1,000 and 20,000, which are 1.3 GB; a slice that
// Kubernetes makes has 100 endpoints by default, which may have all 20,000 ports.
const maxRecords = 2_000_000

// portsWithinLimit returns the number of ports of a slice that maxRecords allows.
func (r *reader) portsWithinLimit(s *discoveryv1.EndpointSlice) int {
	most := max(1, maxRecords/max(1, len(s.Endpoints)))
	if len(s.Ports) <= most {
		return len(s.Ports)
	}
	r.errs.add(fmt.Sprintf("ports from index %d on are", most),
		fmt.Errorf("%d endpoints at %d ports are more than %d", len(s.Endpoints), len(s.Ports), maxRecords), "ports")
	return most
}

// reset removes all references to the API object that was read.
func (r *reader) reset() {
	r.errs = nil
	r.service, r.family, r.hinted = types.NamespacedName{}, "", false
	r.ports = reuse(r.ports)
	r.records = reuse(r.records)
	r.order = reuse(r.order)
	r.text, r.recent = reuse(r.text), ""
}

// readOwner reads the Service and the family, and reports whether the slice belongs to a
// Service and can be used.
func (r *reader) readOwner(s *discoveryv1.EndpointSlice) bool {
	service := s.Labels[discoveryv1.LabelServiceName]
	switch {
	case s.Name == "":
		r.errs.add("slice", errRequired, "metadata.name")
		return false
	case s.Namespace == "":
		r.errs.add("slice", errRequired, "metadata.namespace")
		return false
	case service == "":
		// Slices may serve other purposes than a Service.
		return false
	}
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4:
		r.family = v1.IPv4Protocol
	case discoveryv1.AddressTypeIPv6:
		r.family = v1.IPv6Protocol
	default:
		r.errs.add("slice", fmt.Errorf("%q is neither IPv4 nor IPv6", s.AddressType), "addressType")
		return false
	}
	r.service = types.NamespacedName{Namespace: s.Namespace, Name: service}
	return true
}

func (r *reader) readPorts(ports []discoveryv1.EndpointPort) {
	for i := range ports {
		p := &ports[i]
		protocol, err := readProtocol(p.Protocol)
		if err != nil {
			r.errs.add("port", err, "ports[%d].protocol", i)
			continue
		}
		switch {
		case p.Port == nil:
			r.errs.add("port", errNoPort, "ports[%d].port", i)
			continue
		case *p.Port < 1 || *p.Port > 65535:
			r.errs.add("port", fmt.Errorf("%d is not within 1 and 65535", *p.Port), "ports[%d].port", i)
			continue
		}
		read := portNumber{protocol: protocol, number: uint16(*p.Port)}
		if p.Name != nil {
			read.name = *p.Name
		}
		r.ports = append(r.ports, read)
	}
	slices.SortFunc(r.ports, portNumber.compare)
	r.ports = slices.Compact(r.ports)
}

func readProtocol(p *v1.Protocol) (v1.Protocol, error) {
	if p == nil {
		return v1.ProtocolTCP, nil
	}
	switch *p {
	case v1.ProtocolTCP, "":
		return v1.ProtocolTCP, nil
	case v1.ProtocolUDP:
		return v1.ProtocolUDP, nil
	case v1.ProtocolSCTP:
		return v1.ProtocolSCTP, nil
	}
	return "", fmt.Errorf("%q is not TCP, UDP or SCTP", *p)
}

func (r *reader) readEndpoints(endpoints []discoveryv1.Endpoint) {
	for i := range endpoints {
		if len(endpoints[i].Addresses) == 0 {
			r.errs.add("endpoint", errNoAddress, "endpoints[%d].addresses", i)
			continue
		}
		// Further addresses have no meaning in the API.
		addr, err := parseAddr(endpoints[i].Addresses[0], r.family)
		if err != nil {
			r.errs.add("endpoint", err, "endpoints[%d].addresses[0]", i)
			continue
		}
		r.order = append(r.order, addrIndex{addr, i})
	}
	slices.SortFunc(r.order, func(a, b addrIndex) int { return a.addr.Compare(b.addr) })
	for _, x := range r.order {
		r.readEndpoint(x.addr, &endpoints[x.index])
	}
	r.sortSameAddress()
}

func (r *reader) readEndpoint(addr netip.Addr, e *discoveryv1.Endpoint) {
	read := record{
		Endpoint: Endpoint{
			Addr:        netip.AddrPortFrom(addr, 0),
			Ready:       valueOr(e.Conditions.Ready, true),
			Serving:     valueOr(e.Conditions.Serving, true),
			Terminating: valueOr(e.Conditions.Terminating, false),
		},
	}
	if e.NodeName != nil {
		read.NodeName = *e.NodeName
	}
	if e.Hints != nil {
		read.hints = r.readHints(e.Hints)
	}
	r.view.resolve(&read.Endpoint, read.hints)
	r.records = append(r.records, read)
}

func (r *reader) readHints(h *discoveryv1.EndpointHints) rawHints {
	r.text = appendHints(r.text[:0], h)
	if len(r.text) == 0 {
		return ""
	}
	r.hinted = true
	// Successive endpoints often have the same hints.
	if string(r.text) != r.recent {
		r.recent = r.names.find(r.text)
	}
	return r.recent
}

// reread fills in the records of a slice for the current view, and reports whether
// one of them changed.
func (r *reader) reread(s *sliceState) bool {
	different := false
	r.hinted = s.hints != nil
	for i, e := range s.parts[0].list {
		seen := record{Endpoint: *e}
		if r.hinted {
			seen.hints = s.hints[i]
		}
		r.view.resolve(&seen.Endpoint, seen.hints)
		different = different || seen.Endpoint != *e
		r.records = append(r.records, seen)
	}
	r.sortSameAddress()
	return different
}

// sortSameAddress completes the order of records that are sorted by address.
func (c *content) sortSameAddress() {
	for rest := c.records; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Addr == rest[0].Addr {
			n++
		}
		if n > 1 {
			slices.SortFunc(rest[:n], func(a, b record) int { return a.compare(&b) })
		}
		rest = rest[n:]
	}
}

func (c *content) empty() bool { return len(c.ports) == 0 || len(c.records) == 0 }

// setNumber sets the port number of all records, which does not change their order.
func (c *content) setNumber(number uint16) {
	for i := range c.records {
		c.records[i].Addr = netip.AddrPortFrom(c.records[i].Addr.Addr(), number)
	}
}

func valueOr(b *bool, otherwise bool) bool {
	if b == nil {
		return otherwise
	}
	return *b
}

// reuse empties a list for the next use. It removes its references, and the memory of an
// unusually long one.
func reuse[T any](list []T) []T {
	if cap(list) > 2048 {
		return nil
	}
	clear(list)
	return list[:0]
}
