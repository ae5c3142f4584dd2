package endpoints

import (
	"net/netip"
	"slices"
	"sort"
)

// port is one port of one Service in one family, with the endpoints of all
// slices that have it. It exists as long as it has a part.
type port struct {
	key   ServicePortName
	parts []*part
	// list is the published list, as of the last merge.
	list []*Endpoint
	// merge is nil unless there are several parts.
	merge *merge
	// touched says that the port is in Cache.touched.
	touched bool
}

// part is the contribution of one slice to one port: a sorted list, all of one port
// number. It may hold an address several times. It is empty only while the part is
// added or removed. Lists are replaced, never changed.
type part struct {
	port *port
	list []*Endpoint
	// index is the index of the part in port.parts.
	index int32
}

// merge merges the lists of several parts lazily: many parts may change before the
// result is needed.
type merge struct {
	// all are the records of all parts, in order, as of the last merge.
	all []*Endpoint
	// stale are the parts that were changed, added or removed since, with their lists at the last merge.
	stale map[*part][]*Endpoint
}

// portNumber identifies the part among those of its slice.
func (p *part) portNumber() portNumber {
	return portNumber{name: p.port.key.Port, protocol: p.port.key.Protocol, number: p.list[0].Addr.Port()}
}

// add adds a part, which has no list yet.
func (p *port) add(added *part) {
	if len(p.parts) == 1 {
		p.merge = &merge{all: p.parts[0].list, stale: map[*part][]*Endpoint{}}
	}
	added.index = int32(len(p.parts))
	p.parts = append(p.parts, added)
}

// remove removes a part.
func (p *port) remove(part *part) {
	end := len(p.parts) - 1
	last := p.parts[end]
	p.parts[part.index], last.index = last, part.index
	p.parts[end] = nil
	p.parts = p.parts[:end]
	p.replace(part, nil)
}

// replace replaces the list of a part.
func (p *port) replace(part *part, list []*Endpoint) {
	was := part.list
	part.list = list
	switch len(p.parts) {
	case 0:
		// The Cache removes the port, or adds another part in the same call.
	case 1:
		sole := p.parts[0]
		p.list, p.merge = firstOfEach(sole.list, repeats(sole.list)), nil
	default:
		p.merge.note(part, was)
	}
}

// note records the list that a part had before.
func (m *merge) note(p *part, was []*Endpoint) {
	before, known := m.stale[p]
	switch {
	case !known:
		m.stale[p] = was
	case before == nil && p.list == nil:
		delete(m.stale, p) // It was added and removed between two merges.
	}
}

// endpoints returns the list to publish.
func (p *port) endpoints() []*Endpoint {
	if m := p.merge; m != nil && len(m.stale) > 0 {
		was, is := m.differences()
		all, more := splice(m.all, was, is)
		p.list = firstOfEach(all, len(m.all)-len(p.list)+more)
		m.all = all
		if len(m.stale) > 64 {
			m.stale = map[*part][]*Endpoint{} // A map does not shrink.
		}
		clear(m.stale)
	}
	return p.list
}

// differences returns the records that the stale parts had and those that they have,
// sorted.
func (m *merge) differences() (was, is []*Endpoint) {
	for part, list := range m.stale {
		if len(m.stale) == 1 {
			return list, part.list
		}
		was = append(was, list...)
		is = append(is, part.list...)
	}
	sortEndpoints(was)
	sortEndpoints(is)
	return was, is
}

func sortEndpoints(list []*Endpoint) {
	slices.SortFunc(list, (*Endpoint).Compare)
}

// repeats counts the records that have the address of the previous one.
func repeats(list []*Endpoint) int {
	n := 0
	for i := 1; i < len(list); i++ {
		if list[i].Addr == list[i-1].Addr {
			n++
		}
	}
	return n
}

// firstOfEach returns the first record of each address: the list itself if no address
// is repeated.
func firstOfEach(list []*Endpoint, repeats int) []*Endpoint {
	if repeats == 0 {
		return list
	}
	out := make([]*Endpoint, 0, len(list)-repeats)
	for i := range list {
		if i == 0 || list[i].Addr != list[i-1].Addr {
			out = append(out, list[i])
		}
	}
	return out
}

// splice replaces records of a list by others. All lists are sorted; records between two
// differences are copied at once. It also returns how many more records of the new list
// repeat an address.
func splice(all, was, is []*Endpoint) (out []*Endpoint, more int) {
	out = make([]*Endpoint, 0, len(all)-len(was)+len(is))
	for len(was) > 0 || len(is) > 0 {
		if len(was) > 0 && len(is) > 0 && same(was[0], is[0]) {
			was, is = was[1:], is[1:]
			continue
		}
		addr := lowest(was, is)
		ahead := sort.Search(len(all), func(i int) bool { return all[i].Addr.Compare(addr) >= 0 })
		out = append(out, all[:ahead]...)
		all = all[ahead:]

		n, removed, added := leading(all, addr), leading(was, addr), leading(is, addr)
		before := len(out)
		out = exchange(out, all[:n], was[:removed], is[:added])
		more += max(len(out)-before, 1) - max(n, 1)
		all, was, is = all[n:], was[removed:], is[added:]
	}
	return append(out, all...), more
}

// exchange appends the records of one address, without the removed and with the added ones,
// sorted.
func exchange(out, records, removed, added []*Endpoint) []*Endpoint {
	start := len(out)
	for i := range records {
		if len(removed) > 0 && same(records[i], removed[0]) {
			removed = removed[1:]
			continue
		}
		out = append(out, records[i])
	}
	out = append(out, added...)
	if len(out)-start > 1 {
		sortEndpoints(out[start:])
	}
	return out
}

// same reports whether two records are equal; most often they are one pointer.
func same(a, b *Endpoint) bool { return a == b || *a == *b }

// lowest returns the address of the first record of two lists, not both empty.
func lowest(a, b []*Endpoint) netip.AddrPort {
	if len(b) == 0 || len(a) > 0 && a[0].Addr.Compare(b[0].Addr) < 0 {
		return a[0].Addr
	}
	return b[0].Addr
}

// leading counts the records at the start of a list that have the address.
func leading(list []*Endpoint, addr netip.AddrPort) int {
	n := 0
	for n < len(list) && list[n].Addr == addr {
		n++
	}
	return n
}
