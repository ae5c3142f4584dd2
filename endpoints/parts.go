package endpoints

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// fill replaces the contributions of a slice by the content that was read.
func (c *Cache) fill(s *sliceState) {
	c.setHints(s)
	if c.unchanged(s) {
		return
	}
	c.compare(s)
	c.setParts(s)
}

// unchanged reports whether a slice has the ports and records that were read. Most events
// change neither.
func (c *Cache) unchanged(s *sliceState) bool {
	records := c.reader.records
	if len(s.parts) == 0 || len(s.parts[0].list) != len(records) || len(s.parts) != len(c.reader.ports) {
		return false
	}
	for i, p := range s.parts {
		if p.portNumber() != c.reader.ports[i] {
			return false
		}
	}
	c.reader.setNumber(s.parts[0].portNumber().number)
	for i, e := range s.parts[0].list {
		if *e != records[i].Endpoint {
			return false
		}
	}
	return true
}

// comparison says what the records that were read have in common with those of a slice.
type comparison struct {
	// same says that both have the same records.
	same bool
	// kept are the indexes that the records had in the lists before; -1 for those that are new.
	kept []int
}

// compare compares the records that were read with those of a slice, for all its parts: their
// records differ by the port number only. It also counts the users of node names.
func (c *Cache) compare(s *sliceState) {
	records := c.reader.records
	var old []*Endpoint
	if len(s.parts) > 0 {
		old = s.parts[0].list
		c.reader.setNumber(s.parts[0].portNumber().number)
	}
	kept, next, same := c.kept.kept, 0, len(old) == len(records)
	for i := range records {
		e := &records[i].Endpoint
		for next < len(old) && *old[next] != *e && old[next].Compare(e) < 0 {
			c.reader.names.release(old[next].NodeName)
			next++
		}
		if next < len(old) && *old[next] == *e {
			e.NodeName = old[next].NodeName
			kept = append(kept, next)
			same = same && next == i
			next++
			continue
		}
		e.NodeName = c.reader.names.acquire(e.NodeName)
		kept, same = append(kept, -1), false
	}
	for _, e := range old[next:] {
		c.reader.names.release(e.NodeName)
	}
	c.kept = comparison{same: same, kept: kept}
}

// setParts replaces the parts of a slice by the ports and records that were read.
func (c *Cache) setParts(s *sliceState) {
	old, now := s.parts, c.parts
	var last *part
	var was []*Endpoint // the list that last had
	for _, want := range c.reader.ports {
		for len(old) > 0 && old[0].portNumber().compare(want) < 0 {
			c.dropPart(old[0])
			old = old[1:]
		}
		var p *part
		if len(old) > 0 && old[0].portNumber() == want {
			p, old = old[0], old[1:]
		} else {
			p = c.addPart(want)
		}
		before := p.list
		if last != nil && last.list[0].Addr.Port() == want.number && samePart(was, before) {
			c.share(p, last.list)
		} else {
			c.relist(p, want.number)
		}
		last, was, now = p, before, append(now, p)
	}
	for _, p := range old {
		c.dropPart(p)
	}
	if !slices.Equal(now, s.parts) {
		s.parts = slices.Clone(now)
	}
	c.parts, c.kept.kept = reuse(now), reuse(c.kept.kept)
}

// samePart reports whether two lists are one.
func samePart(a, b []*Endpoint) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// share gives a part the list of another one with the same port number: many ports of a
// Service may be redirected to one.
func (c *Cache) share(p *part, list []*Endpoint) {
	if !samePart(p.list, list) {
		c.touch(p.port)
		p.port.replace(p, list)
	}
}

// addPart adds a part, still without a list, to its port.
func (c *Cache) addPart(n portNumber) *part {
	key := ServicePortName{NamespacedName: c.reader.service, Port: n.name, Protocol: n.protocol, Family: c.reader.family}
	owner := c.ports[key]
	if owner == nil {
		key.Namespace = strings.Clone(key.Namespace)
		key.Name = strings.Clone(key.Name)
		key.Port = strings.Clone(key.Port)
		owner = &port{key: key}
		c.ports[key] = owner
	}
	c.touch(owner)
	p := &part{port: owner}
	owner.add(p)
	return p
}

func (c *Cache) dropPart(p *part) {
	c.touch(p.port)
	p.port.remove(p)
}

// remove removes a slice.
func (c *Cache) remove(name types.NamespacedName, s *sliceState) {
	for _, e := range s.parts[0].list {
		c.reader.names.release(e.NodeName)
	}
	for _, p := range s.parts {
		c.dropPart(p)
	}
	for _, h := range s.hints {
		c.reader.names.release(h)
	}
	delete(c.slices, name)
}

// relist replaces the list of a part by the records that were read, unless both are the same.
func (c *Cache) relist(p *part, number uint16) {
	old := p.list
	if len(old) > 0 && c.kept.same {
		return
	}
	c.touch(p.port)
	records := c.reader.records
	list := make([]*Endpoint, len(records))
	var fresh []Endpoint
	if len(old) == 0 {
		fresh = make([]Endpoint, len(records)) // adjacent in memory, so that reading is faster
	}
	for i, k := range c.kept.kept {
		switch {
		case fresh != nil:
			list[i] = &fresh[i]
		case k >= 0:
			list[i] = old[k]
			continue
		default:
			list[i] = new(Endpoint)
		}
		*list[i] = records[i].Endpoint
		list[i].Addr = netip.AddrPortFrom(list[i].Addr.Addr(), number)
	}
	p.port.replace(p, list)
}

// setHints replaces the raw hints of a slice by those of the records that were read.
func (c *Cache) setHints(s *sliceState) {
	var now []rawHints
	if c.reader.hinted {
		same := slices.EqualFunc(s.hints, c.reader.records, func(h rawHints, r record) bool { return h == r.hints })
		if same {
			return
		}
		now = make([]rawHints, len(c.reader.records))
		for i := range now {
			now[i] = c.reader.names.acquire(c.reader.records[i].hints)
		}
	}
	for _, h := range s.hints {
		c.reader.names.release(h)
	}
	s.hints = now
}

// touch records that the current call changes a port.
func (c *Cache) touch(p *port) {
	if !p.touched {
		p.touched = true
		c.touched = append(c.touched, p)
	}
}

// finish ends a call: it removes ports without parts, and calls changed for all ports
// that were touched.
func (c *Cache) finish() {
	for _, p := range c.touched {
		p.touched = false
		if len(p.parts) == 0 {
			delete(c.ports, p.key)
		}
	}
	for _, p := range c.touched {
		c.changed(p.key)
	}
	c.touched = reuse(c.touched)
}
