package endpoints

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// fill replaces the contributions of a slice by the content that was read.
func (c *Cache) fill(s *sliceState) {
	c.setHints(s)
	c.setParts(s)
}

// setParts replaces the parts of a slice by the ports and records that were read.
func (c *Cache) setParts(s *sliceState) {
	old, now := s.parts, c.parts
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
		c.relist(p, want.number)
		now = append(now, p)
	}
	for _, p := range old {
		c.dropPart(p)
	}
	if !slices.Equal(now, s.parts) {
		s.parts = slices.Clone(now)
	}
	c.parts = reuse(now)
}

// addPart adds a part, still without a list, to its port.
func (c *Cache) addPart(n portNumber) *part {
	key := PortKey{Service: c.reader.service, Port: n.name, Protocol: n.protocol, Family: c.reader.family}
	owner := c.ports[key]
	if owner == nil {
		key.Service.Namespace = strings.Clone(key.Service.Namespace)
		key.Service.Name = strings.Clone(key.Service.Name)
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
	for i := range p.list {
		c.reader.names.release(p.list[i].NodeName)
	}
	p.port.remove(p)
}

// remove removes a slice.
func (c *Cache) remove(name types.NamespacedName, s *sliceState) {
	for _, p := range s.parts {
		c.dropPart(p)
	}
	for _, h := range s.hints {
		c.reader.names.release(h)
	}
	delete(c.slices, name)
}

// relist replaces the list of a part if the records that were read differ from it.
func (c *Cache) relist(p *part, number uint16) {
	records := c.reader.records
	c.reader.setNumber(number)
	if p.has(records) {
		return
	}
	c.touch(p.port)
	list := make([]*Endpoint, len(records))
	old := p.list
	var fresh []Endpoint
	if len(old) == 0 {
		fresh = make([]Endpoint, len(records)) // adjacent in memory, so that reading is faster
	}
	for i := range records {
		e := &records[i].Endpoint
		for len(old) > 0 && *old[0] != *e && old[0].Compare(e) < 0 {
			c.reader.names.release(old[0].NodeName)
			old = old[1:]
		}
		if len(old) > 0 && *old[0] == *e {
			list[i], old = old[0], old[1:]
			continue
		}
		if fresh != nil {
			list[i] = &fresh[i]
		} else {
			list[i] = new(Endpoint)
		}
		*list[i] = *e
		list[i].NodeName = c.reader.names.acquire(e.NodeName)
	}
	for i := range old {
		c.reader.names.release(old[i].NodeName)
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
