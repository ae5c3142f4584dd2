package userspace

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// writer turns operations into a batch.
type writer struct{ *kernel }

func (w *writer) write(ops []op) error {
	w.batch.Reset()
	if w.rebuild {
		for _, fam := range allFamilies() {
			w.batch.DestroyTable(w.table(fam))
		}
	}
	for i := range ops {
		o := &ops[i]
		var err error
		switch o.Key.kind {
		case kindRouting: // not a matter of nf_tables
		case kindTable:
			if o.Kind == backends.Remove {
				w.batch.DelTable(w.table(o.Key.fam))
			} else {
				w.batch.AddTable(w.table(o.Key.fam), "")
			}
		case kindSet:
			err = w.writeSet(o)
		case kindChain:
			err = w.writeChain(o)
		case kindSources:
			w.writeSources(o)
		default:
			w.writeElement(o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) writeSet(o *op) error {
	t := w.table(o.Key.fam)
	switch o.Kind {
	case backends.Remove:
		w.batch.DelSet(t, o.Key.name)
		return nil
	case backends.Replace:
		// It cannot change while rules use it.
		return fmt.Errorf("userspace: %w: set %s", backends.ErrReplace, o.Key.name)
	case backends.Add:
	}
	for _, s := range sets() {
		if s.Name == o.Key.name {
			w.batch.AddSet(t, &s)
		}
	}
	return nil
}

func (w *writer) writeChain(o *op) error {
	t, name := w.table(o.Key.fam), o.Key.name
	if o.Kind != backends.Add {
		w.batch.FlushChain(t, name)
	}
	if o.Kind == backends.Remove {
		w.batch.DelChain(t, name)
		return nil
	}
	d, err := w.renderer.chain(o.Value.hash)
	if err != nil {
		return fmt.Errorf("chain %s: %w", name, err)
	}
	if o.Kind == backends.Replace && d.base.Type != "" {
		w.batch.DelChain(t, name)
	}
	if o.Kind == backends.Add || d.base.Type != "" {
		w.batch.AddChain(t, nfnetlink.Chain{Name: name, Base: d.base})
	}
	own := chainTag(name, d.base)
	for i, r := range d.rules {
		w.batch.AddRule(t, name, r, tagOf(own, o.Value.hash, i, len(d.rules)))
	}
	return nil
}

// chain finds what a chain consists of.
func (r *renderer) chain(hash uint64) (chainDefinition, error) {
	for _, m := range r.rules {
		if d, ok := m[hash]; ok {
			return d, d.err
		}
	}
	return chainDefinition{}, fmt.Errorf("no definition %x is known", hash)
}

// tagOf gives the user data of rule i of n of a chain, by which it is known again.
func tagOf(chain uint32, hash uint64, i, n int) []byte {
	return nfnetlink.AppendTag(nil, []byte(tag(chain, hash, i, n)))
}

func tag(chain uint32, hash uint64, i, n int) string {
	return fmt.Sprintf("%08x %016x %d/%d", chain, hash, i+1, n)
}

// chainTag stands for the name of a chain and its place among the kernel's hooks.
func chainTag(name string, base nfnetlink.BaseChain) uint32 {
	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s %+v", name, base) // a hash does not fail
	return h.Sum32()
}

// hashOf gives the hash that the rules of a chain carry; none where a rule is
// missing, foreign or out of place. It tells also whether a rule was written for a chain
// of another name or place.
func hashOf(chain uint32, tags []string) (hash uint64, moved bool) {
	whole := true
	for at, text := range tags {
		var c uint32
		var h uint64
		var i, n int
		_, err := fmt.Sscanf(text, "%8x %16x %d/%d", &c, &h, &i, &n)
		moved = moved || err == nil && c != chain
		whole = whole && err == nil && i == at+1 && n == len(tags) && (at == 0 || h == hash)
		hash = h
	}
	if !whole {
		hash = 0
	}
	return hash, moved
}

func specHash(s nfnetlink.SetSpec) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%+v", s) // a hash does not fail
	return h.Sum64()
}

func (w *writer) writeElement(o *op) {
	k := &o.Key
	set, elem := elementOf(k)
	if o.Kind != backends.Add {
		e := w.batch.Elements(nfnetlink.OpDelete, w.table(k.fam), set)
		e.Key(elem)
	}
	if o.Kind == backends.Remove {
		return
	}
	e := w.batch.Elements(nfnetlink.OpAdd, w.table(k.fam), set)
	switch k.kind {
	case kindRestricted:
		e.KeyVerdict(elem, nfnetlink.VerdictJump, o.Value.chain)
	case kindFrontend:
		e.KeyVerdict(elem, nfnetlink.VerdictGoto, o.Value.chain)
	default:
		e.Key(elem)
	}
}

// elementOf gives the set that an object is an element of, and its key there.
func elementOf(k *key) (set string, elem []byte) {
	if a := k.addr.Addr(); a.IsValid() {
		elem = append(elem, a.AsSlice()...)
	}
	if k.kind == kindClusterIP {
		return setClusterIPs, elem
	}
	elem = append(elem, k.proto, 0, 0, 0)
	elem = binary.BigEndian.AppendUint16(elem, k.addr.Port())
	elem = append(elem, 0, 0)
	switch {
	case k.kind == kindRestricted:
		return setRestricted, elem
	case !k.addr.Addr().IsValid():
		return setNodePorts, elem
	}
	return setFrontends, elem
}
