package kernelspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/proxy"
)

// putLoadBalancer makes a load balancer what it should be. One whose endpoints are all missing
// does not exist.
func (t *target) putLoadBalancer(ctx context.Context, k key, v *value, with payload) error {
	return t.reach(ctx, k, func() (hcn.LoadBalancer, error) { return t.build(ctx, k, v, with) }, with)
}

// putHealthCheck is putLoadBalancer for one of health checks. What HNS refuses is tried again later: another program,
// or the proxy's own health server, may have the port, and the Service is served without it.
func (t *target) putHealthCheck(ctx context.Context, k key, v *value, with payload) error {
	err := t.putLoadBalancer(ctx, k, v, with)
	if err == nil || isFatal(ctx, err) || errors.Is(err, proxy.ErrDataplaneLost) {
		return err
	}
	t.setPending(k, pendingObject{err: err})
	return nil
}

// reach makes a load balancer what build returns. If an endpoint has vanished, it reads the endpoints
// again and tries once more.
func (t *target) reach(ctx context.Context, k key, build func() (hcn.LoadBalancer, error), with payload) error {
	had, existed := t.mirror.get(k)
	for try := 0; ; try++ {
		want, err := build()
		if err == nil {
			err = t.change(ctx, k, want, with)
		}
		if !errors.Is(err, hcn.ErrNotFound) {
			return err
		}
		again := t.readAgain(ctx, k)
		if _, exists := t.mirror.get(k); existed && !exists && (try > 0 || again != nil) {
			return t.restore(ctx, k, had, errors.Join(err, again))
		}
		if try > 0 || again != nil {
			return errors.Join(err, again)
		}
	}
}

// restore makes a load balancer again that was deleted for another one, which could not be made because of
// cause, with its endpoints that exist.
func (t *target) restore(ctx context.Context, k key, had hcn.LoadBalancer, cause error) error {
	ctx, cancel := t.afterwards(ctx)
	defer cancel()
	had.Endpoints = slices.DeleteFunc(slices.Clone(had.Endpoints), func(id string) bool {
		_, exists := t.mirror.endpoints[id]
		return !exists
	})
	if err := t.createLoadBalancer(ctx, k, had); err != nil {
		return fmt.Errorf("%w: %w; making the former one again: %w", proxy.ErrDataplaneLost, cause, err)
	}
	return cause
}

// readAgain reads the endpoints, and a load balancer, after HNS did not find one of them.
func (t *target) readAgain(ctx context.Context, k key) error {
	t.looked.endpoints = false
	if err := t.lookForEndpoints(ctx); err != nil {
		return err
	}
	have, exists := t.mirror.get(k)
	if !exists {
		return nil
	}
	now, err := t.client.LoadBalancer(ctx, have.ID)
	switch {
	case errors.Is(err, hcn.ErrNotFound):
		t.mirror.drop(k)
	case err != nil:
		return err
	default:
		t.mirror.put(k, normal(now))
	}
	return nil
}

func (t *target) change(ctx context.Context, k key, want hcn.LoadBalancer, with payload) error {
	have, exists := t.mirror.get(k)
	switch {
	case len(want.Endpoints) == 0 && exists:
		return t.deleteLoadBalancer(ctx, k, have.ID)
	case len(want.Endpoints) == 0:
		return nil
	case !exists:
		return t.createLoadBalancer(ctx, k, want)
	case fits(have, want):
		t.state.Add(have.ID)
		return nil
	case with.inPlace && t.facts.features.Modify && t.notModified[k] == nil && t.notModified[key{}] == nil:
		want.ID = have.ID
		done, err := t.modify(ctx, k, want)
		if done || err != nil {
			return err
		}
	}
	return t.replace(ctx, k, have, want)
}

// fits reports whether a load balancer is what it should be. Where HNS chooses the source address, any
// is right.
func fits(have, want hcn.LoadBalancer) bool {
	if !want.SourceVIP.IsValid() {
		have.SourceVIP = want.SourceVIP
	}
	return have.Equal(&want)
}

// modify changes a load balancer in place, and reads it back: some versions of HNS report success
// and change nothing. done is false if HNS cannot do it.
func (t *target) modify(ctx context.Context, k key, want hcn.LoadBalancer) (done bool, err error) {
	err = t.client.ModifyLoadBalancer(ctx, want)
	if errors.Is(err, hcn.ErrUnsupported) {
		t.cannotModify(k, err)
		return false, nil
	}
	if err != nil {
		t.recheck(ctx, k, want.ID, err)
		return false, err
	}
	t.ops.Add(1)
	if err := t.read(ctx, k, want.ID); err != nil {
		t.suspect(err)
		return false, err
	}
	if have, _ := t.mirror.get(k); !fits(have, want) {
		t.cannotModify(k, errors.New("HNS reports success and changes nothing"))
		return false, nil
	}
	t.state.Add(want.ID)
	return true, nil
}

// cannotModify has a load balancer made again instead of modified until HNS has ended; all of them if it
// is not implemented.
func (t *target) cannotModify(k key, err error) {
	if known, ok := errors.AsType[*hcn.Error](err); ok && known.Code == hcn.CodeNotImplemented {
		k = key{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notModified[k] = fmt.Errorf("%v: %w", k, err)
}

// canModify has some load balancers modified again.
func (t *target) canModify(some func(key) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.notModified, func(k key, _ error) bool { return some(k) })
}

// read reads a load balancer.
func (t *target) read(ctx context.Context, k key, id string) error {
	b, err := t.client.LoadBalancer(ctx, id)
	switch {
	case err == nil:
		t.mirror.put(k, normal(b))
	case errors.Is(err, hcn.ErrNotFound):
		t.mirror.drop(k)
	}
	return err
}

// recheck reads what a call that failed with cause has left of a load balancer: it may have taken
// effect.
func (t *target) recheck(ctx context.Context, k key, id string, cause error) {
	if isRefusal(cause) {
		return
	}
	ctx, cancel := t.afterwards(ctx)
	defer cancel()
	if err := t.read(ctx, k, id); err != nil && !errors.Is(err, hcn.ErrNotFound) {
		t.suspect(err)
	}
}

// recheckCreated looks for a load balancer after a call to make it failed with cause. As long as the
// outcome is not known, the attempt stays in the state.
func (t *target) recheckCreated(ctx context.Context, k key, cause error) {
	ctx, cancel := t.afterwards(ctx)
	defer cancel()
	b, found, err := t.other(ctx, k)
	switch {
	case err != nil:
		t.suspect(err)
	case found:
		t.mirror.put(k, normal(b))
		t.state.decided(k, b.ID)
	case !isEnd(cause):
		t.state.decided(k, "")
	}
}

// refused records that an attempt has made nothing. The outcome of an earlier one stays unknown.
func (t *target) refused(k key, first bool) {
	if first {
		t.state.decided(k, "")
	}
}

// isEnd reports whether a call ended with its context: HNS may still carry it out.
func isEnd(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// isRefusal reports whether an error says that HNS did nothing.
func isRefusal(err error) bool {
	known, ok := errors.AsType[*hcn.Error](err)
	return ok && (errors.Is(err, hcn.ErrExists) || errors.Is(err, hcn.ErrNotFound) || errors.Is(err, hcn.ErrUnsupported) ||
		known.Code == hcn.CodeInvalidParameter || known.Code == hcn.CodeHasReferences)
}

// replace deletes a load balancer and makes another one. If that fails it makes the former one
// again.
func (t *target) replace(ctx context.Context, k key, have, want hcn.LoadBalancer) error {
	if err := t.deleteLoadBalancer(ctx, k, have.ID); err != nil {
		return err
	}
	err := t.createLoadBalancer(ctx, k, want)
	if err == nil || errors.Is(err, hcn.ErrNotFound) {
		return err // reach tries again
	}
	return t.restore(ctx, k, have, err)
}

// createLoadBalancer makes a load balancer. If another one has its address, protocol and port, that
// one is deleted first.
func (t *target) createLoadBalancer(ctx context.Context, k key, want hcn.LoadBalancer) error {
	want.ID = ""
	if err := t.conflict(k); err != nil {
		return err
	}
	first := t.state.intend(k)
	id, err := t.client.CreateLoadBalancer(ctx, want)
	if errors.Is(err, hcn.ErrExists) {
		if err := t.clear(ctx, k, err); err != nil {
			t.refused(k, first)
			return err
		}
		id, err = t.client.CreateLoadBalancer(ctx, want)
	}
	if isRefusal(err) {
		t.refused(k, first)
		return err
	}
	if err != nil {
		t.recheckCreated(ctx, k, err)
		return err
	}
	t.ops.Add(1)
	want.ID = id
	t.mirror.put(k, want)
	t.state.decided(k, id)
	return nil
}

// conflict returns an error if a frontend and a health check, or two different health checks, have one address, protocol and port: each
// would delete the other one's load balancer.
func (t *target) conflict(k key) error {
	if other, exists := t.mirror.loadBalancers[k.place()]; exists && other.key != k {
		return fmt.Errorf("%v has the address and port", other.key)
	}
	return nil
}

// clear deletes the one load balancer that has the address, protocol and port of a key; cause is
// the error that it exists.
func (t *target) clear(ctx context.Context, k key, cause error) error {
	b, found, err := t.other(ctx, k)
	switch {
	case err != nil:
		return err
	case !found:
		return cause
	}
	return t.deleteLoadBalancer(ctx, k, b.ID)
}

// other finds the load balancer that has the address, protocol and port of a key in HNS. Those that
// the mirror has for other keys need not be read.
func (t *target) other(ctx context.Context, k key) (b hcn.LoadBalancer, found bool, err error) {
	ids, err := t.client.LoadBalancerIDs(ctx)
	if err != nil {
		return b, false, err
	}
	known := map[string]bool{}
	for at, b := range t.mirror.loadBalancers {
		known[b.ID] = at != k.place()
	}
	var failed error
	for _, id := range ids {
		if known[id] {
			continue
		}
		b, err := t.client.LoadBalancer(ctx, id)
		if err != nil && !errors.Is(err, hcn.ErrNotFound) {
			failed = err // it may be another one
			if isFatal(ctx, err) {
				break
			}
			continue
		}
		if at, ok := keyOf(&b); ok && at.place() == k.place() {
			return b, true, nil
		}
	}
	return b, false, failed
}

// removeLoadBalancer removes the load balancer of a key if it is the backend's own.
func (t *target) removeLoadBalancer(ctx context.Context, k key) error {
	t.canModify(func(x key) bool { return x == k })
	have, exists := t.mirror.get(k)
	if !exists || !t.state.Has(have.ID) {
		return nil
	}
	return t.deleteLoadBalancer(ctx, k, have.ID)
}

// deleteLoadBalancer deletes a load balancer; one that does not exist was deleted.
func (t *target) deleteLoadBalancer(ctx context.Context, k key, id string) error {
	if err := t.client.DeleteLoadBalancer(ctx, id); err == nil {
		t.ops.Add(1)
	} else if !errors.Is(err, hcn.ErrNotFound) {
		t.recheck(ctx, k, id, err)
		return err
	}
	if t.mirror.loadBalancers[k.place()].ID == id {
		t.mirror.drop(k)
	}
	return nil
}
