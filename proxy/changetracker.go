package proxy

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/pmap"
)

// NewServiceChangeTracker returns an empty tracker. Run its method LogMissing beside a [Runner]: as long
// as inputs are missing, no snapshot comes, and only LogMissing says why.
func NewServiceChangeTracker(options TrackerOptions) *ServiceChangeTracker {
	if options.Accept == nil {
		options.Accept = acceptUnlabelled
	}
	// Published nodes are immutable and refer to these slices.
	options.NodeAddresses = slices.Clone(options.NodeAddresses)
	options.NodePortAddresses.Prefixes = slices.Clone(options.NodePortAddresses.Prefixes)
	options.NodePortAddresses.Loopback = slices.Clone(options.NodePortAddresses.Loopback)
	options.LocalTraffic.Sources = slices.Clone(options.LocalTraffic.Sources)
	options.ServiceCIDRs = slices.Clone(options.ServiceCIDRs)
	options.Annotations = slices.Clone(options.Annotations)
	t := &ServiceChangeTracker{
		options:   options,
		services:  map[types.NamespacedName]*serviceState{},
		claims:    claims{owners: map[claimKey]*claim{}, rivals: map[claimKey][]*claim{}},
		removed:   map[ServicePortName]struct{}{},
		problems:  problemStore{findings: pmap.New[problemKey, *finding]().Edit()},
		changeLog: changeLog{start: time.Now(), open: map[types.NamespacedName]ChangeTimes{}},
	}
	t.claims.handOver = t.handOver
	t.node = resolveNode(&t.options, nodeFacts{addresses: options.NodeAddresses})
	t.cache = endpoints.NewCache(endpoints.View{NodeName: options.NodeName}, t.endpointsChanged)
	t.snapshot.ports = pmap.New[ServicePortName, *ServicePort]()
	return t
}

// ServiceChangeTracker makes snapshots of API objects. [NewServiceChangeTracker] makes one. All
// methods may be called from any goroutine.
//
// The tracker adds every object to its state at once, and resolves the service ports
// that may have changed when Next makes a snapshot. So the cost of an event depends
// on the size of the object, and a port with many events is resolved once.
type ServiceChangeTracker struct {
	options TrackerOptions

	mu       sync.Mutex
	node     *Node
	services map[types.NamespacedName]*serviceState
	claims   claims
	cache    *endpoints.Cache
	// dirty are the ports to resolve for the next snapshot; removed the names
	// that the last one has and the next one must not have.
	dirty     []*portState
	removed   map[ServicePortName]struct{}
	problems  problemStore
	snapshot  Snapshot
	changeLog changeLog
	// waiting is closed when there may be a new snapshot; nil while no call of Next waits.
	waiting chan struct{}
}

// serviceState is a Service that needs proxying.
type serviceState struct {
	spec *serviceSpec
	// version counts the readings of the Service: it distinguishes its claims from those
	// that they replace.
	version int
	ports   []*portState
	// byName are the ports, sorted by name.
	byName []*portState
	// conflictsStale says that the conflicts that are recorded as problems may have changed.
	conflictsStale bool
}

// portState is one port of such a Service in one family.
type portState struct {
	service *serviceState
	spec    *portSpec
	// dirtyIndex is the index of the port in the tracker's list dirty plus one; 0 if it is not
	// in the list.
	dirtyIndex int
	// claims are the port's, in the order of its candidates.
	claims []claim
	// published is the port in the last snapshot.
	published *ServicePort
	// frontends and routes are those resolved last; nil frontends must be
	// resolved again.
	frontends []Frontend
	routes    portRoutes
}

func acceptUnlabelled(s *v1.Service) bool {
	_, named := s.Labels["service.kubernetes.io/service-proxy-name"]
	return !named
}

// UpdateService implements [ServiceHandler].
func (t *ServiceChangeTracker) UpdateService(s *v1.Service) {
	if s == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var spec *serviceSpec
	if t.options.Accept(s) {
		spec = readService(s, &t.options)
	}
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	t.changeLog.service(name)
	t.setService(name, spec)
	t.wake()
}

// DeleteService implements [ServiceHandler].
func (t *ServiceChangeTracker) DeleteService(name types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changeLog.service(name)
	t.setService(name, nil)
	t.wake()
}

// setService replaces the state of a Service; spec is nil for one that needs no proxy.
func (t *ServiceChangeTracker) setService(name types.NamespacedName, spec *serviceSpec) {
	old := t.services[name]
	if old == nil && spec == nil || old != nil && spec != nil && old.spec.equal(spec) {
		return
	}
	// The new claims are added before the old ones are removed, so that the Service keeps the
	// addresses that both have.
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
		t.add(now)
	}
}

// claim adds the claims of a Service, beside those of its old reading if there is one.
func (t *ServiceChangeTracker) claim(spec *serviceSpec, old *serviceState) *serviceState {
	s := &serviceState{spec: spec, ports: make([]*portState, len(spec.ports)), conflictsStale: true}
	if old != nil {
		s.version = old.version + 1
	}
	for i := range spec.ports {
		s.ports[i] = &portState{service: s, spec: &spec.ports[i]}
		t.claims.add(s.ports[i])
	}
	compare := func(a, b *portState) int { return a.spec.name.Compare(b.spec.name) }
	s.byName = s.ports
	if !slices.IsSortedFunc(s.ports, compare) {
		s.byName = slices.SortedFunc(slices.Values(s.ports), compare)
	}
	return s
}

// drop removes a Service.
func (t *ServiceChangeTracker) drop(s *serviceState) {
	t.problems.note(conflictKey(s.spec.name), nil)
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

// add adds a Service whose claims have been added.
func (t *ServiceChangeTracker) add(s *serviceState) {
	t.services[s.spec.name] = s
	for _, p := range s.ports {
		t.problems.countNodePorts(p.spec, +1)
		delete(t.removed, p.spec.name)
		t.mark(p)
	}
}

// UpdateEndpointSlice implements [ServiceHandler].
func (t *ServiceChangeTracker) UpdateEndpointSlice(s *discoveryv1.EndpointSlice) {
	if s == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changeLog.slice(s)
	err := t.cache.Update(s)
	key := objectKey("EndpointSlice", types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
	t.problems.set(key, sliceProblems(key, err))
	t.wake()
}

// DeleteEndpointSlice implements [ServiceHandler].
func (t *ServiceChangeTracker) DeleteEndpointSlice(name types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changeLog.slice(nil)
	t.cache.Delete(name)
	t.problems.set(objectKey("EndpointSlice", name), nil)
	t.wake()
}

// endpointsChanged is called by the cache; it requires t.mu.
func (t *ServiceChangeTracker) endpointsChanged(name ServicePortName) {
	s := t.services[name.NamespacedName]
	if s == nil {
		return
	}
	compare := func(p *portState, name ServicePortName) int { return p.spec.name.Compare(name) }
	if i, ok := slices.BinarySearchFunc(s.byName, name, compare); ok {
		t.mark(s.byName[i])
	}
}

// UpdateNode replaces the object of the Node that the proxy runs on; objects of other
// nodes are ignored. Nil means that the object was deleted: the tracker keeps its last
// content, and reports the deletion in [Snapshot.Problems].
func (t *ServiceChangeTracker) UpdateNode(n *v1.Node) {
	name := t.options.NodeName
	if name == "" || n != nil && n.Name != name {
		return
	}
	t.changeLog.eligible.Store(isEligible(n))
	t.mu.Lock()
	defer t.mu.Unlock()
	key := objectKey("Node", types.NamespacedName{Name: name})
	if n == nil {
		// The last state stays in effect: without it node ports would have no
		// addresses, and traffic of pods would count as traffic from outside.
		t.problems.set(key, []*Problem{{Kind: "Node", NamespacedName: key.NamespacedName, Field: "metadata.name", Reason: NodeIncomplete, Err: errNodeGone}})
		t.wake()
		return
	}
	t.changeLog.hasNode = true
	facts, problems := readNode(n)
	t.problems.set(key, problems)
	t.setNode(resolveNode(&t.options, facts))
	t.wake()
}

// UpdateServiceCIDRs replaces all ranges that ClusterIPs are allocated from, also the ranges
// of the options.
func (t *ServiceChangeTracker) UpdateServiceCIDRs(all []netip.Prefix) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.options.ServiceCIDRs = slices.Clone(all)
	node := *t.node
	node.ServiceCIDRs = tidyPrefixes(slices.Clone(all))
	t.setNode(&node)
	t.wake()
}

func (t *ServiceChangeTracker) setNode(node *Node) {
	if node.Equal(t.node) {
		return
	}
	if node.Equal(t.snapshot.node) {
		node = t.snapshot.node // changed and changed back
	}
	t.node = node
	t.cache.SetView(endpoints.View{NodeName: node.Name, Zone: node.Zone})
	for _, s := range t.services {
		t.markFrontends(s.ports...)
	}
}

// Synced must be called after all existing objects have been handed over.
// Before that, Next returns no snapshot: it would remove working objects of
// the dataplane whose Services the tracker has not received yet. [ServiceChangeTracker.LogMissing]
// logs that it was not called.
func (t *ServiceChangeTracker) Synced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changeLog.synced = true
	t.wake()
}

// mark adds a port to the list of ports to resolve.
func (t *ServiceChangeTracker) mark(p *portState) {
	if p.dirtyIndex == 0 {
		t.dirty = append(t.dirty, p)
		p.dirtyIndex = len(t.dirty)
	}
}

// unmark removes a port of a removed Service from the list, so that the list stays
// short however long Next is not called.
func (t *ServiceChangeTracker) unmark(p *portState) {
	if p.dirtyIndex == 0 {
		return
	}
	end := len(t.dirty) - 1
	last := t.dirty[end]
	t.dirty[p.dirtyIndex-1], last.dirtyIndex = last, p.dirtyIndex
	t.dirty[end], p.dirtyIndex = nil, 0
	t.dirty = t.dirty[:end]
}

// markFrontends marks ports whose frontends may have changed.
func (t *ServiceChangeTracker) markFrontends(ports ...*portState) {
	for _, p := range ports {
		p.frontends, p.service.conflictsStale = nil, true
		t.mark(p)
	}
}

func (t *ServiceChangeTracker) wake() {
	if t.waiting != nil && t.changeLog.synced {
		close(t.waiting)
		t.waiting = nil
	}
}
