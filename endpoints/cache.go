package endpoints

import (
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cache merges the EndpointSlices of all Services into one list of endpoints
// for each service port. What it gives depends only on the slices that it holds
// and on the view, not on the order in which they came.
//
// A Cache keeps nothing of the API objects that it is given and does not change
// them. It is not safe for concurrent use; the lists that it gave out are.
type Cache struct {
	reader  reader
	changed func(PortKey)
	slices  map[types.NamespacedName]*sliceState
	ports   map[PortKey]*port
	// touched are the ports that the call under way has changed.
	touched []*port
	// parts is for use while a slice is filled.
	parts []*part
}

// sliceState is a slice that contributes endpoints.
type sliceState struct {
	// parts are what it contributes, sorted by name, protocol and number of
	// the port; there is at least one. Their lists have the same records but
	// for the port number.
	parts []*part
	// hints are those of the records, in the order of the lists; nil if none
	// has any.
	hints []rawHints
}

// NewCache gives an empty Cache. At the end of every [Cache.Update],
// [Cache.Delete] and [Cache.SetView] it calls changed, once for every service
// port whose endpoints may now be others, whether or not there is such a
// Service. In that call the Cache may be read but not changed. Nil is for those
// who need no notice.
func NewCache(view View, changed func(PortKey)) *Cache {
	if changed == nil {
		changed = func(PortKey) {}
	}
	return &Cache{
		reader:  reader{view: view, names: names{}},
		changed: changed,
		slices:  map[types.NamespacedName]*sliceState{},
		ports:   map[PortKey]*port{},
	}
}

// Endpoints gives the endpoints of a service port, sorted by
// [Endpoint.Compare], no two with one address: where slices disagree on an
// address, the record that comes first in that order counts. The list and its
// endpoints never change, and nobody may change them; an endpoint that stays as
// it was is the same pointer in the next list. The list is nil where there are
// none.
func (c *Cache) Endpoints(key PortKey) []*Endpoint {
	if p := c.ports[key]; p != nil {
		return p.endpoints()
	}
	return nil
}

// Update takes a slice that is new or may have changed. What cannot be used of
// it is left out and reported: the error joins a [FieldError] for each part. A
// slice that belongs to no Service contributes nothing, which is no error.
func (c *Cache) Update(slice *discoveryv1.EndpointSlice) error {
	name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}
	err := c.reader.read(slice)
	known := c.slices[name]
	if known != nil && (c.reader.empty() || !known.belongsTo(&c.reader.content)) {
		c.remove(name, known)
		known = nil
	}
	switch {
	case c.reader.empty():
	case known == nil:
		known = &sliceState{}
		c.fill(known)
		c.slices[types.NamespacedName{
			Namespace: known.parts[0].port.key.Service.Namespace,
			Name:      strings.Clone(name.Name),
		}] = known
	default:
		c.fill(known)
	}
	c.reader.forget()
	c.settle()
	return err
}

// Delete takes that a slice is gone. One that was never there is no error.
func (c *Cache) Delete(slice types.NamespacedName) {
	if known := c.slices[slice]; known != nil {
		c.remove(slice, known)
		c.settle()
	}
}

// SetView changes from where endpoints are looked at.
func (c *Cache) SetView(view View) {
	if c.reader.view == view {
		return
	}
	c.reader.view = view
	for _, s := range c.slices {
		if c.reader.reread(s) {
			c.setHints(s)
			for _, p := range s.parts {
				c.relist(p, p.portNumber().number)
			}
		}
		c.reader.forget()
	}
	c.settle()
}

func (s *sliceState) belongsTo(c *content) bool {
	key := &s.parts[0].port.key
	return key.Service == c.service && key.Family == c.family
}
