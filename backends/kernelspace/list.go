package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/proxy"
)

// List implements [backends.Target]. A query that fails changes nothing. It also yields load balancers
// and endpoints of others: one that a Service needs is adopted, without a call if it is right; the
// others stay, since Commit removes only the backend's own.
func (t *target) List(ctx context.Context) iter.Seq2[object, error] {
	return func(yield func(object, error) bool) {
		objects, err := t.list(ctx, false)
		if err != nil {
			yield(object{}, translate(err))
			return
		}
		for _, o := range objects {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// list lists everything; if cleans is set, only to remove it.
func (t *target) list(ctx context.Context, cleans bool) (objects []object, err error) {
	l := lister{target: t, cleans: cleans}
	if objects, done, err := l.again(ctx); done || err != nil {
		return objects, err
	}
	t.end = time.Time{}
	noticed := t.beginList()
	if err := l.read(ctx); err != nil {
		t.note(noticed)
		return nil, err
	}
	t.state.load()
	t.mirror = l.mirror
	objects = l.endpoints()
	exists := map[string]bool{}
	for i := range l.loadBalancers {
		b := &l.loadBalancers[i]
		exists[b.ID] = true
		if o, ok := l.loadBalancer(b); ok {
			objects = append(objects, o)
		}
	}
	t.canModify(func(k key) bool {
		_, exists := l.mirror.get(k)
		return noticed == hcn.Disconnected || !exists && k != key{} // HNS may be another version now
	})
	for id := range l.mirror.endpoints {
		exists[id] = true
	}
	for id := range l.unread {
		exists[id] = true
	}
	t.state.keep(exists, len(l.unread) > 0)
	t.state.flush()
	t.listed(l.facts, true)
	if len(l.unread) > 0 { // load balancers may refer to any endpoint
		t.suspect(unreadable(l.unread))
		t.flush()
	}
	return objects, nil
}

// lister is one reading of HNS.
type lister struct {
	*target
	// cleans says that everything will be removed: then the network may be missing, and what serving
	// needs is not required.
	cleans        bool
	facts         facts
	mirror        *mirror
	loadBalancers []hcn.LoadBalancer
	unread        map[string]error // why objects, by ID, cannot be read
}

// again returns what the mirror has, if that is known to be right. It reads only whether the network is
// the same: its subnets say which endpoints may be on this node.
func (l *lister) again(ctx context.Context) (objects []object, done bool, err error) {
	l.mu.Lock()
	known := l.drift.known && l.drift.noticed <= hcn.EndpointsChanged && !l.pending.isSuspect() && !l.cleans
	l.drift.known = false
	l.mu.Unlock()
	if !known {
		return nil, false, nil
	}
	l.facts, l.mirror = l.target.facts, l.target.mirror
	network, err := l.findNetwork(ctx)
	if err != nil || !isSame(&network, &l.facts.network) {
		l.note(hcn.NetworksChanged)
		return nil, false, err
	}
	l.mirror.network, l.mirror.stale = network, false
	objects = l.endpoints()
	for _, b := range l.mirror.loadBalancers {
		objects = append(objects, l.object(b.key, &b.LoadBalancer))
	}
	l.listed(l.facts, false)
	return objects, true, nil
}

func isSame(a, b *hcn.Network) bool {
	return a.ID == b.ID && slices.Equal(a.Subnets, b.Subnets) && slices.Equal(a.RemoteSubnets, b.RemoteSubnets)
}

// endpoints returns as objects the endpoints that no pod of this node has.
func (l *lister) endpoints() (objects []object) {
	for id, e := range l.mirror.endpoints {
		if len(e.Addresses) > 0 && (e.Remote || l.mirror.pods[e.Addresses[0]] != id) {
			objects = append(objects, l.endpoint(&e))
		}
	}
	return objects
}

// read reads everything, and changes nothing of the target.
func (l *lister) read(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := l.readHost(ctx); err != nil {
		return err
	}
	var known map[string]hcn.Endpoint
	if was := l.target.mirror; was != nil && was.network.ID == l.mirror.network.ID {
		known = was.endpoints
	}
	endpoints, unread, err := l.readEndpoints(ctx, l.mirror.network.ID, known)
	if err != nil {
		return fmt.Errorf("endpoints of network %s: %w", l.options.Network, err)
	}
	for _, e := range endpoints {
		if len(e.Addresses) > 0 {
			l.mirror.addEndpoint(e)
		}
	}
	ids, err := l.client.LoadBalancerIDs(ctx)
	if err != nil {
		return fmt.Errorf("load balancers: %w", err)
	}
	for _, id := range ids {
		b, err := l.client.LoadBalancer(ctx, id)
		switch {
		case errors.Is(err, hcn.ErrNotFound): // it vanished meanwhile
		case err != nil && isFatal(ctx, err):
			return fmt.Errorf("load balancer %s: %w", id, err)
		case err != nil:
			unread[id] = fmt.Errorf("load balancer %s: %w", id, err)
		default:
			l.loadBalancers = append(l.loadBalancers, b)
		}
	}
	l.unread = unread
	return nil
}

// unreadable returns why objects, by ID, cannot be read, as one error.
func unreadable(unread map[string]error) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(unread)) {
		errs = append(errs, unread[id])
	}
	return join(errs)
}

// readHost reads what HNS can do, and the network.
func (l *lister) readHost(ctx context.Context) error {
	version, err := l.client.Version(ctx)
	if err != nil {
		return fmt.Errorf("version of HNS: %w", err)
	}
	can := version.Features()
	if !can.V2 {
		return fmt.Errorf("%w: HNS has version %s, want 9.2 or later: Windows Server 2019", proxy.ErrUnsupported, version)
	}
	if l.options.DSR && !can.DSR && !l.cleans {
		return fmt.Errorf("%w: HNS %s has no direct server return: unset Options.DSR", proxy.ErrUnsupported, version)
	}
	network, err := l.findNetwork(ctx)
	if err != nil {
		return err
	}
	l.mirror = newMirror(network, l.prefix, l.options.HealthChecks.Endpoint)
	if was := l.target.mirror; was != nil {
		l.mirror.host = was.host
	}
	l.facts = facts{features: can, network: network, overlay: network.IsOverlay()}
	if l.facts.overlay && !l.cleans && (!l.options.sourceVIP("IPv4").IsValid() || l.options.HostMAC == "" || !can.RemoteSubnet) {
		return fmt.Errorf("%w: network %s is an overlay: set an address of IPv4 in Options.SourceVIPs, and Options.HostMAC", proxy.ErrUnsupported, network.Name)
	}
	return nil
}

// findNetwork returns the network. One with another ID than before counts if two queries agree. To
// clean up, a missing one has no ID, which stands for all.
func (l *lister) findNetwork(ctx context.Context) (hcn.Network, error) {
	network, err := l.client.Network(ctx, l.options.Network)
	if l.cleans && errors.Is(err, hcn.ErrNotFound) {
		return hcn.Network{}, nil
	}
	if was := l.target.mirror; err == nil && was != nil && was.network.ID != network.ID {
		first := network.ID
		if network, err = l.client.Network(ctx, l.options.Network); err == nil && network.ID != first {
			return network, fmt.Errorf("%w: network %s is being made again", backends.ErrUnavailable, l.options.Network)
		}
	}
	switch {
	case errors.Is(err, hcn.ErrNotFound):
		return network, fmt.Errorf("%w: network %s does not exist yet: %w", backends.ErrUnavailable, l.options.Network, err)
	case err != nil:
		return network, fmt.Errorf("network %s: %w", l.options.Network, err)
	}
	return network, nil
}

// endpoint returns an endpoint as an object.
func (l *lister) endpoint(e *hcn.Endpoint) object {
	r, known := parseName(e.Name, l.prefix)
	v := value{wrong: !known || e.Remote != (r != roleSource)}
	switch {
	case !l.facts.overlay || r == roleSource:
	case r == roleVIP:
		v.host = e.ProviderAddress
	default:
		v.host = l.mirror.host
		provider, found := providerOf(&l.mirror.network, e.Addresses[0])
		if !found {
			provider = l.mirror.host
		}
		v.wrong = v.wrong || provider != e.ProviderAddress
	}
	return object{Key: endpointKey(e.Addresses[0], r), Value: v}
}

// loadBalancer returns a load balancer as an object; false if no key names it, or another one has
// the same key.
func (l *lister) loadBalancer(b *hcn.LoadBalancer) (object, bool) {
	k, ok := keyOf(b)
	if ok && l.mirror.root != "" && len(b.Endpoints) == 1 && b.Endpoints[0] == l.mirror.root {
		k.kind, k.mapping = kindHealthCheck, b.PortMappings[0].Flags
	}
	if _, taken := l.mirror.loadBalancers[k.place()]; !ok || taken {
		l.mirror.count(b, 1)
		return object{}, false
	}
	l.mirror.put(k, normal(*b))
	if l.state.Has(attempt(k)) {
		l.state.decided(k, b.ID)
	}
	return l.object(k, b), true
}

// object returns a load balancer as the object of a key.
func (l *lister) object(k key, b *hcn.LoadBalancer) object {
	p := &b.PortMappings[0]
	v := value{port: p.InternalPort, flags: b.Flags &^ hcn.IPv6, mapping: p.Flags, distribution: p.Distribution, wrong: !l.state.Has(b.ID)}
	if k.kind == kindHealthCheck {
		return object{Key: k, Value: v}
	}
	var isRight bool
	v.endpoints, isRight = l.addresses(b, k.addr.Addr().Is4())
	if l.facts.overlay {
		v.host = l.mirror.host
	}
	source := (&renderer{&l.options, l.facts}).sourceOf(l.mirror, k, &v)
	v.wrong = v.wrong || !isRight || source.IsValid() && b.SourceVIP != source
	return object{Key: k, Value: v}
}

// addresses returns the endpoints of a load balancer as encode does; false if one does not exist, or
// is not the one that its address stands for.
func (l *lister) addresses(b *hcn.LoadBalancer, isIPv4 bool) (encoded string, ok bool) {
	var all []netip.Addr
	for _, id := range b.Endpoints {
		e := l.mirror.endpoints[id]
		i := slices.IndexFunc(e.Addresses, func(a netip.Addr) bool { return a.Is4() == isIPv4 })
		if i < 0 {
			return "", false
		}
		if found, _ := l.mirror.find(e.Addresses[i], false); found != id {
			return "", false
		}
		all = append(all, e.Addresses[i])
	}
	slices.SortFunc(all, netip.Addr.Compare)
	var out []byte
	for _, a := range all {
		_, isPod := l.mirror.pods[a]
		out = appendEndpoint(out, a, isPod)
	}
	return string(out), true
}

// Cleanup is Cleanup of [backends.TargetAbilities]: load balancers go before the endpoints that they use. Without
// the network, the endpoints of all networks that have the backend's names go.
func (t *target) Cleanup(ctx context.Context) error {
	if _, err := t.list(ctx, true); err != nil {
		return fmt.Errorf("kernelspace: %w", translate(err))
	}
	var ops []op
	for _, b := range slices.SortedFunc(maps.Values(t.mirror.loadBalancers), func(a, b balancer) int { return compareKeys(a.key, b.key) }) {
		ops = append(ops, op{Kind: backends.Remove, Key: b.key})
	}
	if err := t.Commit(ctx, ops).Err(); err != nil {
		return err
	}
	// By ID: several may have one address, of which a key names one.
	for _, id := range slices.Sorted(maps.Keys(t.mirror.endpoints)) {
		if !t.owns(id) {
			continue
		}
		k := endpointKey(t.mirror.endpoints[id].Addresses[0], t.roleOf(id))
		if err := translate(t.deleteEndpoint(ctx, id)); err != nil {
			t.setPending(k, pendingObject{err: err})
			if isFatal(ctx, err) {
				break
			}
		}
	}
	t.flush()
	if err := t.pending.failure(); err != nil {
		return err
	}
	if err := t.state.clear(); err != nil {
		return fmt.Errorf("kernelspace: %w", err)
	}
	return nil
}
