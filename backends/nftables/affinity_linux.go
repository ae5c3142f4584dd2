package nftables

import (
	"maps"

	"github.com/vipkit/vipkit/backends"
)

// affinityState is what is known of the affinity maps of both tables, each with the key of its set.
type affinityState struct {
	// endpoints are the endpoints to which the clients of a map may have affinity.
	endpoints map[key]map[slot]bool
	// suspects are the sets that may have clients of other endpoints, if they are affinity maps.
	suspects map[key]bool
	// beside says that earlier objects still serve, so that clients get affinity to their endpoints.
	beside bool
	// halfway says that the last commit was carried out in part.
	halfway bool
}

// mapOf returns the key of the affinity map of an object of kindSticky.
func mapOf(sticky *key) key { return key{kind: kindSet, fam: sticky.fam, name: sticky.name} }

// add adds an endpoint to which clients may have affinity.
func (a *affinityState) add(sticky *key) {
	set := mapOf(sticky)
	if a.endpoints == nil {
		a.endpoints = map[key]map[slot]bool{}
	}
	if a.endpoints[set] == nil {
		a.endpoints[set] = map[slot]bool{}
	}
	a.endpoints[set][sticky.slot()] = true
}

// note records operations that were carried out; whole says that their commit had no others.
//
// A map that loses an endpoint may have clients of it. In a map that the operations add, packets that the
// kernel evaluated during the commit, or between two transactions, may have added clients of any removed
// endpoint.
func (a *affinityState) note(ops []op, whole bool) {
	removes, unsettled, loses := false, a.beside || a.halfway || !whole, [2]bool{}
	for i := range ops {
		o := &ops[i]
		a.noteOne(o)
		if o.Kind == backends.Remove {
			removes = true
			loses[familyAt(o.Key.fam)] = loses[familyAt(o.Key.fam)] || o.Key.kind == kindEndpoint
		}
	}
	for i := range ops {
		if k := &ops[i].Key; k.kind == kindSet && ops[i].Kind == backends.Add && (unsettled || loses[familyAt(k.fam)]) {
			a.suspect(*k)
		}
	}
	a.beside, a.halfway = a.beside && !removes, !whole && (a.halfway || len(ops) > 0)
}

// noteOne records the maps and endpoints of an operation.
func (a *affinityState) noteOne(o *op) {
	k := &o.Key
	switch {
	case k.kind == kindSet && o.Kind == backends.Remove:
		delete(a.endpoints, *k)
		delete(a.suspects, *k)
	case k.kind == kindSticky && o.Kind == backends.Remove:
		delete(a.endpoints[mapOf(k)], k.slot())
		a.suspect(mapOf(k))
	case k.kind == kindSticky:
		a.add(k)
	}
}

func (a *affinityState) suspect(set key) {
	if a.suspects == nil {
		a.suspects = map[key]bool{}
	}
	a.suspects[set] = true
}

// toPurge returns the affinity maps from which clients must be removed now. While earlier objects serve,
// that would be in vain.
func (a *affinityState) toPurge() map[key]bool {
	if a.beside {
		return nil
	}
	maps.DeleteFunc(a.suspects, func(set key, _ bool) bool { return a.endpoints[set] == nil })
	return a.suspects
}
