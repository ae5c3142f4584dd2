package nftables

import (
	"context"
	"maps"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
)

// purges are affinity maps, by the keys of their sets, from which clients must be removed: from each of leaving
// those of these endpoints, from each of staying those of all other endpoints.
type purges struct{ leaving, staying map[key]map[slot]bool }

// purgesOf returns the clients that may have affinity to a removed endpoint after operations: in
// maps that exist, those of the endpoints that leave the map. Packets that the kernel evaluated
// during the commit, or between two transactions, may have chosen any removed endpoint and
// added the client to a map that the operations add: there, only the map's own endpoints stay.
// A list of the removed endpoints for each such map would grow with the square of the change.
func purgesOf(ops []op) (p purges) {
	sets, added := affinityChanges(ops)
	if sets == nil {
		return p
	}
	p = purges{leaving: map[key]map[slot]bool{}, staying: map[key]map[slot]bool{}}
	removes := map[nfnetlink.Family]bool{}
	for i := range ops {
		k := &ops[i].Key
		if ops[i].Kind != backends.Remove {
			continue
		}
		removes[k.fam] = removes[k.fam] || k.kind == kindEndpoint
		if kind, changed := sets[setOf(k)]; k.kind != kindSticky || changed && kind == backends.Remove {
			continue
		}
		if p.leaving[setOf(k)] == nil {
			p.leaving[setOf(k)] = map[slot]bool{}
		}
		p.leaving[setOf(k)][k.slot()] = true
	}
	for set, endpoints := range added {
		if removes[set.fam] {
			p.staying[set] = endpoints
		}
	}
	return p
}

// affinityChanges returns the sets that operations add or remove, and for each affinity map
// that they add the endpoints to which its clients may have affinity. It returns nil if no
// operation concerns affinity.
func affinityChanges(ops []op) (sets map[key]backends.OpKind, added map[key]map[slot]bool) {
	isSticky := func(o op) bool { return o.Key.kind == kindSticky }
	if !slices.ContainsFunc(ops, isSticky) {
		return nil, nil
	}
	sets, added = map[key]backends.OpKind{}, map[key]map[slot]bool{}
	for i := range ops {
		if ops[i].Key.kind == kindSet {
			sets[ops[i].Key] = ops[i].Kind
		}
	}
	for i := range ops {
		k := &ops[i].Key
		kind, changed := sets[setOf(k)]
		if k.kind != kindSticky || !changed || kind != backends.Add {
			continue
		}
		if added[setOf(k)] == nil {
			added[setOf(k)] = map[slot]bool{}
		}
		added[setOf(k)][k.slot()] = true
	}
	return sets, added
}

// setOf returns the key of the affinity map of an object of kindSticky.
func setOf(sticky *key) key { return key{kind: kindSet, fam: sticky.fam, name: sticky.name} }

// forget removes the affinity of clients to endpoints that operations have removed.
func (k *kernel) forget(ctx context.Context, t *tables, ops []op) error {
	t.noteBegun(ops)
	if err := k.purge(ctx, t, purgesOf(ops)); err != nil {
		return err
	}
	if t.begun == nil || !slices.ContainsFunc(ops, func(o op) bool { return o.Kind == backends.Remove }) {
		return nil
	}
	return k.forgetBegun(ctx, t)
}

// forgetBegun removes the affinity to endpoints of earlier objects, which are gone now.
func (k *kernel) forgetBegun(ctx context.Context, t *tables) error {
	maps := t.begun
	t.begun = nil
	return k.purge(ctx, t, purges{staying: maps})
}

// noteBegun notes affinity maps that operations have added beside earlier objects.
func (t *tables) noteBegun(ops []op) {
	if t.begun == nil {
		return
	}
	sets, added := affinityChanges(ops)
	maps.Copy(t.begun, added)
	for set, kind := range sets {
		if kind == backends.Remove {
			delete(t.begun, set)
		}
	}
	for i := range ops {
		k := &ops[i].Key
		if k.kind != kindSticky || t.begun[setOf(k)] == nil {
			continue
		}
		if ops[i].Kind == backends.Remove {
			delete(t.begun[setOf(k)], k.slot())
		} else {
			t.begun[setOf(k)][k.slot()] = true
		}
	}
}
