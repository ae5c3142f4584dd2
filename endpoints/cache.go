package endpoints

import (
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Cache merges the EndpointSlices of all Services into one list of endpoints
// for each service port. Its lists depend only on the slices that it holds and on
// the view, not on the order in which the slices arrived.
//
// A Cache neither keeps nor changes API objects. It is not safe for concurrent use; the
// lists that it returned are.
type Cache struct {
	reader  reader
	changed func(ServicePortName)
	slices  map[types.NamespacedName]*sliceState
	ports   map[ServicePortName]*port
	// touched are the ports that the current call has changed.
	touched []*port
	// parts is a buffer of setParts.
	parts []*part
	// kept is what the current call has found by compare.
	kept comparison
}

// sliceState is a slice that contributes endpoints.
type sliceState struct {
	// parts are its contributions, sorted by name, protocol and number of the
	// port; there is at least one. Their lists have the same records but for the
	// port number.
	parts []*part
	// hints are the hints of the records, in the order of the lists; nil if no record
	// has any.
	hints []rawHints
}

// NewCache returns an empty Cache. At the end of every [Cache.Update],
// [Cache.Delete] and [Cache.SetView] it calls changed, once for every service
// port whose endpoints may have changed, whether or not that Service exists.
// changed may read the Cache but not change it; nil is allowed.
func NewCache(view View, changed func(ServicePortName)) *Cache {
	if changed == nil {
		changed = func(ServicePortName) {}
	}
	return &Cache{
		reader:  reader{view: view, names: names{}},
		changed: changed,
		slices:  map[types.NamespacedName]*sliceState{},
		ports:   map[ServicePortName]*port{},
	}
}

// Endpoints returns the endpoints of a service port, sorted by
// [Endpoint.Compare], no two with one address: if slices have different records of
// an address, the list has the first one in that order. Callers must not change the
// list or its endpoints, and the Cache does not. An unchanged endpoint is the same
// pointer in the next list. A service port without endpoints has a nil list.
func (c *Cache) Endpoints(key ServicePortName) []*Endpoint {
	if p := c.ports[key]; p != nil {
		return p.endpoints()
	}
	return nil
}

// Select selects from the endpoints of a service port, as the function [Select] does.
func (c *Cache) Select(key ServicePortName, p Policy) Selection {
	return selectSorted(c.Endpoints(key), p)
}

// Update adds a slice, or replaces it. It ignores the parts that it cannot use; the error
// joins a [FieldError] for each of them. A slice that belongs to no Service contributes
// nothing, which is no error.
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
			Namespace: known.parts[0].port.key.Namespace,
			Name:      strings.Clone(name.Name),
		}] = known
	default:
		c.fill(known)
	}
	c.reader.reset()
	c.finish()
	return err
}

// Delete removes a slice. A name that the Cache does not know is no error.
func (c *Cache) Delete(slice types.NamespacedName) {
	if known := c.slices[slice]; known != nil {
		c.remove(slice, known)
		c.finish()
	}
}

// SetView changes the node that the endpoints are seen from.
func (c *Cache) SetView(view View) {
	if c.reader.view == view {
		return
	}
	c.reader.view = view
	for _, s := range c.slices {
		if c.reader.reread(s) {
			c.reader.ports = appendPorts(c.reader.ports, s.parts)
			c.fill(s)
		}
		c.reader.reset()
	}
	c.finish()
}

// appendPorts appends the ports of parts.
func appendPorts(to []portNumber, parts []*part) []portNumber {
	for _, p := range parts {
		to = append(to, p.portNumber())
	}
	return to
}

func (s *sliceState) belongsTo(c *content) bool {
	key := &s.parts[0].port.key
	return key.NamespacedName == c.service && key.Family == c.family
}
