package nftables

import (
	"context"
	"maps"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// purge is a removed endpoint, for which clients must not have affinity any longer.
type purge struct {
	table nfnetlink.Table
	set   string
	slot  slot
}

// purgesOf returns the removed endpoints to which clients may have affinity after operations.
// If the operations add the affinity map, these are all removed endpoints: packets that the
// kernel evaluated during the commit, or between two transactions, may have chosen them.
func purgesOf(t *tables, ops []op) (all []purge) {
	sets, added := affinityChanges(ops)
	if sets == nil {
		return nil
	}
	for i := range ops {
		if ops[i].Kind != backends.Remove {
			continue
		}
		k := &ops[i].Key
		for _, set := range mapsOf(k, sets, added) {
			all = append(all, purge{table: t.table(k.fam), set: text(set), slot: k.slot()})
		}
	}
	return all
}

// mapsOf returns the affinity maps that may have clients of a removed object.
func mapsOf(removed *key, sets map[key]backends.OpKind, added map[key]map[slot]bool) (maps []handle) {
	switch removed.kind {
	case kindSticky:
		if kind, changed := sets[setOf(removed)]; !changed || kind != backends.Remove {
			maps = append(maps, removed.name)
		}
	case kindEndpoint:
		for set, endpoints := range added {
			if set.fam == removed.fam && !endpoints[removed.slot()] {
				maps = append(maps, set.name)
			}
		}
	default:
	}
	return maps
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
	if err := k.purge(ctx, purgesOf(t, ops)); err != nil {
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
	return k.purgeOthers(ctx, t, maps)
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
