package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/proxy"
)

// putEndpoint makes an endpoint what it should be.
func (t *target) putEndpoint(ctx context.Context, k key, v *value) error {
	a := k.addr.Addr()
	if isPod, err := t.isPod(ctx, a); k.role == rolePod && (isPod || err != nil) {
		return err
	}
	id, exists := t.mirror.made[a]
	if k.role < t.roleOf(id) {
		return nil
	}
	if !exists {
		return t.createEndpoint(ctx, k, v)
	}
	want, err := t.wanted(ctx, k, v)
	if err != nil {
		return err
	}
	have := t.mirror.endpoints[id]
	_, isNamed := parseName(have.Name, t.prefix)
	if have.ProviderAddress == want.ProviderAddress && have.Remote == want.Remote && (!isNamed || t.roleOf(id) == k.role) {
		t.adopt(id, want.Name)
		return nil
	}
	if err := t.isInUse(id, len(t.usersOf(id))); err != nil {
		// A try would take the endpoint out of its load balancers and put it back, for nothing.
		t.setPending(k, pendingObject{err: fmt.Errorf("it must be made again, and cannot be deleted now: %w", err)})
		return nil
	}
	return t.refresh(ctx, k, v)
}

// isPod reports whether a pod of this node has an address. The pod that had it may have gone, so it
// reads the endpoints again.
func (t *target) isPod(ctx context.Context, a netip.Addr) (bool, error) {
	if _, was := t.mirror.pods[a]; !was {
		return false, nil
	}
	err := t.lookForEndpoints(ctx)
	_, is := t.mirror.pods[a]
	return is, err
}

// roleOf returns the role in the name of an endpoint.
func (t *target) roleOf(id string) role {
	r, _ := parseName(t.mirror.endpoints[id].Name, t.prefix)
	return r
}

// adopt makes an endpoint the backend's own. The mirror gets the name that it would have.
func (t *target) adopt(id, name string) {
	e := t.mirror.endpoints[id]
	if _, isNamed := parseName(e.Name, t.prefix); isNamed {
		return
	}
	t.state.Add(id)
	e.Name = name
	t.mirror.endpoints[id] = e
}

// wanted returns the endpoint of a key and value.
func (t *target) wanted(ctx context.Context, k key, v *value) (hcn.Endpoint, error) {
	a := k.addr.Addr()
	e := hcn.Endpoint{Name: nameOf(t.prefix, k), NetworkID: t.mirror.network.ID, Addresses: []netip.Addr{a}, MAC: macOf(a), Remote: k.role != roleSource}
	if k.role != rolePod {
		e.MAC, e.ProviderAddress = t.options.HostMAC, v.host
		return e, nil
	}
	if !t.facts.overlay {
		return e, nil
	}
	provider, found := providerOf(&t.mirror.network, a)
	if !found && !t.looked.network { // the CNI plugin may have added the subnet of a new node
		if err := t.readNetwork(ctx); err != nil {
			return e, err
		}
		provider, found = providerOf(&t.mirror.network, a)
	}
	if !found {
		provider = v.host
		t.setPending(k, pendingObject{err: fmt.Errorf("no remote subnet of network %s has the address", t.mirror.network.Name)})
	}
	e.ProviderAddress = provider
	return e, nil
}

// readNetwork reads the remote subnets of the network.
func (t *target) readNetwork(ctx context.Context) error {
	t.looked.network = true
	n, err := t.client.Network(ctx, t.options.Network)
	if err != nil {
		return err
	}
	if n.ID != t.mirror.network.ID {
		return fmt.Errorf("network %s was made again", n.Name)
	}
	t.mirror.network = n
	return nil
}

// createEndpoint makes an endpoint. If another one has its address, that one is used.
func (t *target) createEndpoint(ctx context.Context, k key, v *value) error {
	e, err := t.wanted(ctx, k, v)
	if err != nil {
		return err
	}
	id, err := t.client.CreateEndpoint(ctx, e)
	if errors.Is(err, hcn.ErrExists) {
		found, failed := t.useExisting(ctx, k, e.Name)
		if found || failed != nil {
			return failed
		}
	}
	if err != nil {
		t.recheckEndpoints(ctx, err)
		return err
	}
	t.ops.Add(1)
	e.ID = id
	t.mirror.addEndpoint(e)
	return nil
}

// useExisting reports whether an endpoint exists that has the address of a key, and adopts one that
// is no pod's.
func (t *target) useExisting(ctx context.Context, k key, name string) (found bool, err error) {
	t.looked.endpoints = false
	if err := t.lookForEndpoints(ctx); err != nil {
		return false, err
	}
	id, found := t.mirror.find(k.addr.Addr(), false)
	if found && t.mirror.made[k.addr.Addr()] == id {
		t.adopt(id, name)
	}
	return found, nil
}

// refresh makes an endpoint again, because its address belongs to a pod of another node now, or is
// reached in another way. Load balancers leave it out meanwhile: none may refer to an endpoint
// that does not exist.
func (t *target) refresh(ctx context.Context, k key, v *value) error {
	id := t.mirror.made[k.addr.Addr()]
	users := t.usersOf(id)
	err := t.putAll(ctx, users, id, "")
	if err == nil {
		err = t.deleteEndpoint(ctx, id)
	}
	if err == nil {
		err = t.createEndpoint(ctx, k, v)
	}
	if len(users) == 0 {
		return err
	}
	if err != nil {
		var cancel context.CancelFunc
		ctx, cancel = t.afterwards(ctx)
		defer cancel()
	}
	now, found := t.mirror.find(k.addr.Addr(), false)
	again := t.putAll(ctx, users, id, now)
	if again == nil && !found {
		again = errors.New("the endpoint does not exist any more")
	}
	if again != nil { // those are load balancers of other Services too
		return errors.Join(err, fmt.Errorf("%w: putting the endpoint back into its load balancers: %w", proxy.ErrDataplaneLost, again))
	}
	return err
}

// usersOf returns the load balancers that refer to an endpoint.
func (t *target) usersOf(id string) (all []balancer) {
	for _, b := range t.mirror.loadBalancers {
		if slices.Contains(b.Endpoints, id) {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b balancer) int { return compareKeys(a.key, b.key) })
	return all
}

// putAll is put for all load balancers that referred to an endpoint. It stops at none that fails.
func (t *target) putAll(ctx context.Context, users []balancer, old, new string) error {
	var errs []error
	for _, u := range users {
		if err := t.put(ctx, u, old, new); err != nil {
			errs = append(errs, fmt.Errorf("%v: %w", u.key, err))
		}
	}
	return errors.Join(errs...)
}

// put gives a load balancer what it had, with another endpoint, if there is one, instead of one.
func (t *target) put(ctx context.Context, u balancer, old, new string) error {
	b := u.LoadBalancer
	b.Endpoints = slices.DeleteFunc(slices.Clone(b.Endpoints), func(e string) bool { return e == old })
	if new != "" {
		b.Endpoints = append(b.Endpoints, new)
	}
	return t.reach(ctx, u.key, func() (hcn.LoadBalancer, error) { return b, nil }, payload{inPlace: true})
}

func compareKeys(a, b key) int {
	if c := a.addr.Compare(b.addr); c != 0 {
		return c
	}
	return int(a.protocol) - int(b.protocol)
}

// removeEndpoint removes an endpoint if it is the backend's own, and no load balancer refers to
// it.
func (t *target) removeEndpoint(ctx context.Context, k key) error {
	if id, exists := t.mirror.made[k.addr.Addr()]; exists && t.owns(id) && t.roleOf(id) == k.role {
		return t.deleteEndpoint(ctx, id)
	}
	return nil
}

// isInUse returns an error if more load balancers than a number refer to an endpoint, or may do so.
func (t *target) isInUse(id string, known int) error {
	if n := t.mirror.users[id] - known; n > 0 {
		return fmt.Errorf("%d load balancers use it", n)
	}
	if t.pending.isSuspect() {
		return errors.New("after an error, load balancers must be listed before")
	}
	return nil
}

// recheckEndpoints reads which endpoints there are after a call that failed with cause: it may have
// taken effect.
func (t *target) recheckEndpoints(ctx context.Context, cause error) {
	if isRefusal(cause) {
		return
	}
	ctx, cancel := t.afterwards(ctx)
	defer cancel()
	t.looked.endpoints = false
	if err := t.lookForEndpoints(ctx); err != nil {
		t.suspect(err)
	}
}

// deleteEndpoint deletes an endpoint; one that does not exist was deleted.
func (t *target) deleteEndpoint(ctx context.Context, id string) error {
	if err := t.isInUse(id, 0); err != nil {
		return err
	}
	if err := t.client.DeleteEndpoint(ctx, id); err == nil {
		t.ops.Add(1)
	} else if !errors.Is(err, hcn.ErrNotFound) {
		t.recheckEndpoints(ctx, err)
		return err
	}
	t.mirror.dropEndpoint(id)
	return nil
}

// owns reports whether an endpoint is the backend's own: it has a name of the backend, or was
// adopted.
func (t *target) owns(id string) bool {
	_, isNamed := parseName(t.mirror.endpoints[id].Name, t.prefix)
	return isNamed || t.state.Has(id)
}

// lookForEndpoints reads which endpoints exist, and the content of new ones: an endpoint keeps its
// address. It does so once in a Commit.
func (t *target) lookForEndpoints(ctx context.Context) error {
	if t.looked.endpoints {
		return nil
	}
	t.looked.endpoints = true
	all, unread, err := t.readEndpoints(ctx, t.mirror.network.ID, t.mirror.endpoints)
	if err != nil {
		return err
	}
	if len(unread) > 0 {
		t.suspect(unreadable(unread))
	}
	t.mirror.update(all)
	return nil
}

// readEndpoints returns the endpoints of a network, and why some, by ID, cannot be read. It reads those
// that are not known.
func (t *target) readEndpoints(ctx context.Context, network string, known map[string]hcn.Endpoint) (all map[string]hcn.Endpoint, unread map[string]error, err error) {
	ids, err := t.client.EndpointIDs(ctx, network)
	if err != nil {
		return nil, nil, err
	}
	all, unread = make(map[string]hcn.Endpoint, len(ids)), map[string]error{}
	for _, id := range ids {
		e, isKnown := known[id]
		if !isKnown {
			switch e, err = t.client.Endpoint(ctx, id); {
			case errors.Is(err, hcn.ErrNotFound):
				continue // it vanished meanwhile
			case err != nil && isFatal(ctx, err):
				return nil, nil, err
			case err != nil:
				unread[id] = fmt.Errorf("endpoint %s: %w", id, err)
				continue
			}
		}
		all[id] = e
	}
	return all, unread, nil
}
