package nftables

import (
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// RenderDiff is RenderDiff of [backends.TargetAbilities] for the usual change: endpoints are added
// and removed, and the frontends and their verdicts stay the same.
func (k *kernel) RenderDiff(env backends.Env, c proxy.Change, removed, added []object) (r, a []object, ok bool) {
	d := portDiff{removed: k.writer(env.Node, c.Old, removed), added: k.writer(env.Node, c.New, added)}
	if !k.serves(d.added.fam) || !sameFrontends(c.Old, c.New) {
		return removed, added, false
	}
	for _, pool := range [...]proxy.Pool{proxy.PoolCluster, proxy.PoolLocal} {
		d.pool(pool)
	}
	return d.removed.out, d.added.out, true
}

// sameFrontends reports whether two states of a service port lead to the same
// chains, whatever their endpoints are.
func sameFrontends(old, new *proxy.ServicePort) bool {
	if old.Name != new.Name || old.Affinity != new.Affinity {
		return false
	}
	for _, pool := range [...]proxy.Pool{proxy.PoolCluster, proxy.PoolLocal} {
		was, is := len(old.Pool(pool)), len(new.Pool(pool))
		if (was == 0) != (is == 0) || classOf(was) != classOf(is) {
			return false
		}
	}
	a, b := old.Frontends, new.Frontends
	same := len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
	return same || slices.EqualFunc(a, b, proxy.Frontend.Equal)
}

// portDiff appends the objects that only one of two states of a service port needs.
type portDiff struct{ removed, added portWriter }

// pool compares both states of a pool, which are sorted.
func (d *portDiff) pool(pool proxy.Pool) {
	old, new := d.removed.port.Pool(pool), d.added.port.Pool(pool)
	for {
		for len(old) > 0 && len(new) > 0 && old[0] == new[0] {
			old, new = old[1:], new[1:]
		}
		order := 0
		switch {
		case len(old) == 0 && len(new) == 0:
			return
		case len(old) == 0:
			order = 1
		case len(new) == 0:
			order = -1
		default:
			order = old[0].Addr.Compare(new[0].Addr)
		}
		switch {
		case order < 0:
			d.removed.endpoint(pool, old[0])
			old = old[1:]
		case order > 0:
			d.added.endpoint(pool, new[0])
			new = new[1:]
		default: // the same address in another state, which does not matter here
			old, new = old[1:], new[1:]
		}
	}
}

// endpoint appends all objects that a service port needs for one endpoint of a pool.
func (w *portWriter) endpoint(pool proxy.Pool, e *endpoints.Endpoint) {
	s := w.slot(e)
	w.hairpin(s)
	for i := range w.port.Frontends {
		f := &w.port.Frontends[i]
		if !chooses(f, pool) {
			continue
		}
		if w.affinity != "" {
			w.sticky(w.affinitySet(pool), s)
			w.nodePortClient(f, w.at(f), s)
		}
		w.addEndpoint(w.at(f), pool, s)
	}
}
