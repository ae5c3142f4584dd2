package proxy

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/pmap"
)

// NewServiceChangeTracker gives a tracker that has heard of nothing yet.
func NewServiceChangeTracker(options TrackerOptions) ServiceChangeTracker {
	if options.Accept == nil {
		options.Accept = acceptUnlabelled
	}
	// Published nodes refer to these, and never change.
	options.NodeAddresses = slices.Clone(options.NodeAddresses)
	options.NodePortAddresses.Prefixes = slices.Clone(options.NodePortAddresses.Prefixes)
	options.LocalTraffic.Sources = slices.Clone(options.LocalTraffic.Sources)
	options.ServiceCIDRs = slices.Clone(options.ServiceCIDRs)
	t := &tracker{
		options:  options,
		services: map[types.NamespacedName]*serviceState{},
		claims:   claims{contests: map[claimKey]*contest{}},
		removed:  map[ServicePortName]struct{}{},
		problems: newProblemBook(),
	}
	t.claims.handOver = t.handOver
	t.node = resolveNode(&t.options, nodeFacts{addresses: options.NodeAddresses})
	t.cache = endpoints.NewCache(endpoints.View{NodeName: options.NodeName}, t.endpointsChanged)
	t.snapshot.ports = pmap.New[ServicePortName, *ServicePort]()
	return t
}

// tracker folds every object into its own state at once, and resolves the
// service ports that may have changed when the next snapshot is asked for. So
// an event costs what the object holds, and many events about one port are
// resolved once.
type tracker struct {
	options TrackerOptions

	mu       sync.Mutex
	node     *Node
	services map[types.NamespacedName]*serviceState
	claims   claims
	cache    *endpoints.Cache
	// dirty are the ports to resolve for the next snapshot; removed the names
	// that the last one has and the next one must not have.
	dirty    []*portState
	removed  map[ServicePortName]struct{}
	problems problemBook
	snapshot Snapshot
	synced   bool
	// waiting is closed when there may be a new snapshot; nil while nobody waits.
	waiting chan struct{}
}

// serviceState is a Service that needs proxying.
type serviceState struct {
	spec *serviceSpec
	// version counts the readings of the Service, so that its claims can be told
	// from those that they replace.
	version int
	ports   []*portState
	// reported are the conflicts that are noted as problems; unreported says that
	// there may be others by now.
	reported   conflicts
	unreported bool
}

// portState is one port of such a Service in one family.
type portState struct {
	service *serviceState
	spec    *portSpec
	key     endpoints.PortKey
	// place is that of the port in the tracker's list of dirty ones, from 1;
	// 0 where it is not there.
	place int
	// claims are those of the port, in the order of its candidates.
	claims []claim
	// published is what the last snapshot has of the port.
	published *ServicePort
	// frontends and routes are those resolved last; nil frontends are to be
	// made anew.
	frontends []Frontend
	routes    portRoutes
}

func acceptUnlabelled(s *v1.Service) bool {
	_, named := s.Labels["service.kubernetes.io/service-proxy-name"]
	return !named
}

func (t *tracker) UpdateService(s *v1.Service) {
	if s == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var spec *serviceSpec
	if t.options.Accept(s) {
		spec = readService(s, &t.options)
	}
	t.setService(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, spec)
}

func (t *tracker) DeleteService(name types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setService(name, nil)
}

// setService replaces what is known of a Service; nil for one that needs no proxy.
func (t *tracker) setService(name types.NamespacedName, spec *serviceSpec) {
	old := t.services[name]
	if old == nil && spec == nil || old != nil && spec != nil && old.spec.equal(spec) {
		return
	}
	// What the Service asks for before and after stays its own all the time.
	var now *serviceState
	if spec != nil {
		now = t.claim(spec, old)
	}
	if old != nil {
		t.drop(old)
		delete(t.services, name)
	}
	t.problems.set(objectKey("Service", name), nil)
	if now != nil {
		t.problems.set(objectKey("Service", name), spec.problems)
		t.take(now)
	}
	t.wake()
}

// claim enters the claims of a Service, beside those of an old reading if there is one.
func (t *tracker) claim(spec *serviceSpec, old *serviceState) *serviceState {
	s := &serviceState{spec: spec, ports: make([]*portState, len(spec.ports)), unreported: true}
	if old != nil {
		s.version = old.version + 1
	}
	for i := range spec.ports {
		n := spec.ports[i].name
		s.ports[i] = &portState{
			service: s,
			spec:    &spec.ports[i],
			key:     endpoints.PortKey{Service: n.NamespacedName, Port: n.Port, Protocol: n.Protocol, Family: n.Family},
		}
		t.claims.add(s.ports[i])
	}
	return s
}

// drop forgets a Service.
func (t *tracker) drop(s *serviceState) {
	t.reportConflicts(s, conflicts{})
	for _, p := range s.ports {
		t.claims.remove(p)
		t.problems.set(limitKey(p.spec.name), nil)
		t.problems.countNodePorts(p.spec, -1)
		t.unmark(p)
		if _, known := t.snapshot.ports.Get(p.spec.name); known {
			t.removed[p.spec.name] = struct{}{}
		}
	}
}

// take enters a Service whose claims are there.
func (t *tracker) take(s *serviceState) {
	t.services[s.spec.name] = s
	for _, p := range s.ports {
		t.problems.countNodePorts(p.spec, +1)
		delete(t.removed, p.spec.name)
		t.mark(p)
	}
}

func (t *tracker) UpdateEndpointSlice(s *discoveryv1.EndpointSlice) {
	if s == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.cache.Update(s)
	key := objectKey("EndpointSlice", types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
	t.problems.set(key, sliceProblems(key, err))
	t.wake()
}

func (t *tracker) DeleteEndpointSlice(name types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cache.Delete(name)
	t.problems.set(objectKey("EndpointSlice", name), nil)
	t.wake()
}

// endpointsChanged is called by the cache, under the lock.
func (t *tracker) endpointsChanged(key endpoints.PortKey) {
	s := t.services[key.Service]
	if s == nil {
		return
	}
	for _, p := range s.ports {
		if p.key == key {
			t.mark(p)
			return
		}
	}
}

func (t *tracker) UpdateNode(n *v1.Node) {
	name := t.options.NodeName
	if name == "" || n != nil && n.Name != name {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := objectKey("Node", types.NamespacedName{Name: name})
	if n == nil {
		// Nothing that works is taken down for it: node ports would be without
		// addresses, and pods taken for strangers.
		t.problems.set(key, []*Problem{{Kind: "Node", NamespacedName: key.NamespacedName, Field: "metadata.name", Err: errNodeGone}})
		t.wake()
		return
	}
	facts, problems := readNode(n)
	t.problems.set(key, problems)
	t.setNode(resolveNode(&t.options, facts))
	t.wake()
}

// UpdateServiceCIDRs takes the ranges that ClusterIPs come from, in place of those
// of the options.
func (t *tracker) UpdateServiceCIDRs(all []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.options.ServiceCIDRs = slices.Clone(all)
	node := *t.node
	node.ServiceCIDRs = tidyPrefixes(slices.Clone(all))
	t.setNode(&node)
	t.wake()
}

func (t *tracker) setNode(node *Node) {
	if node.Equal(t.node) {
		return
	}
	if node.Equal(t.snapshot.node) {
		node = t.snapshot.node // there and back again is no change
	}
	t.node = node
	t.cache.SetView(endpoints.View{NodeName: node.Name, Zone: node.Zone})
	for _, s := range t.services {
		t.markFrontends(s.ports...)
	}
}

func (t *tracker) Synced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.synced = true
	t.wake()
}

// mark notes that a port must be resolved again.
func (t *tracker) mark(p *portState) {
	if p.place == 0 {
		t.dirty = append(t.dirty, p)
		p.place = len(t.dirty)
	}
}

// unmark takes a port that is gone off the list, so that the list stays short
// however long nobody asks for a snapshot.
func (t *tracker) unmark(p *portState) {
	if p.place == 0 {
		return
	}
	end := len(t.dirty) - 1
	last := t.dirty[end]
	t.dirty[p.place-1], last.place = last, p.place
	t.dirty[end], p.place = nil, 0
	t.dirty = t.dirty[:end]
}

// markFrontends notes the same of ports whose frontends may have changed.
func (t *tracker) markFrontends(ports ...*portState) {
	for _, p := range ports {
		p.frontends, p.service.unreported = nil, true
		t.mark(p)
	}
}

func (t *tracker) wake() {
	if t.waiting != nil && t.synced {
		close(t.waiting)
		t.waiting = nil
	}
}

func (t *tracker) Next(ctx context.Context, after Snapshot) (Snapshot, error) {
	for {
		s, wait := t.poll(after)
		if wait == nil {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return Snapshot{}, ctx.Err()
		case <-wait:
		}
	}
}

// poll gives the newest snapshot, or a channel to wait on where that has
// after's generation.
func (t *tracker) poll(after Snapshot) (Snapshot, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.synced {
		t.publish()
		if t.snapshot.generation != after.generation {
			return t.snapshot, nil
		}
	}
	if t.waiting == nil {
		t.waiting = make(chan struct{})
	}
	return Snapshot{}, t.waiting
}

// publish brings the snapshot up to date. What was changed and changed back
// since the last one leaves no trace.
func (t *tracker) publish() {
	t.problems.checkNodePorts(&t.options, t.node)
	first := t.snapshot.generation == 0
	if !first && len(t.dirty) == 0 && len(t.removed) == 0 && !t.problems.stale && t.snapshot.node == t.node {
		return
	}
	next := t.snapshot
	next.node = t.node
	next.ports = t.resolveDirty()
	next.problems = t.problems.report(t.snapshot.problems)
	if first || next.ports != t.snapshot.ports || next.node != t.snapshot.node || next.problems != t.snapshot.problems {
		next.generation++
		t.snapshot = next
	}
}

func (t *tracker) resolveDirty() pmap.Map[ServicePortName, *ServicePort] {
	edit := t.snapshot.ports.Edit()
	for name := range t.removed {
		edit.Delete(name)
	}
	for _, p := range t.dirty {
		p.place = 0
		if p.service.unreported {
			p.service.unreported = false
			t.reportConflicts(p.service, p.service.conflicts())
		}
		if p.published == nil {
			// What came back as it was, after its Service had been another or
			// none, is no change.
			p.published, _ = t.snapshot.ports.Get(p.spec.name)
		}
		port := t.resolve(p)
		if !p.published.Equal(port) {
			edit.Set(p.spec.name, port)
			p.published = port
		}
	}
	t.dirty = reuse(t.dirty)
	if len(t.removed) > 0 {
		t.removed = map[ServicePortName]struct{}{}
	}
	return edit.Map()
}

// reuse empties a work list without keeping what it refers to, nor the memory
// of an unusually long one.
func reuse(list []*portState) []*portState {
	if cap(list) > 4096 {
		return nil
	}
	clear(list)
	return list[:0]
}
