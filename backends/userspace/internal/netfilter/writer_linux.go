package netfilter

import (
	"encoding/binary"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
)

// writer writes operations to a batch.
type writer struct{ *Capture }

func (w *writer) write(ops []op, rebuild bool) error {
	w.batch.Reset()
	if rebuild {
		for _, fam := range nft.Families() {
			w.batch.DestroyTable(w.table(fam))
		}
	}
	for i := range ops {
		o := &ops[i]
		var err error
		switch o.Key.kind {
		case kindRouting: // no object of nf_tables
		case kindTable:
			if o.Kind == backends.Remove {
				w.batch.DelTable(w.table(o.Key.fam))
			} else {
				w.batch.AddTable(w.table(o.Key.fam))
			}
		case kindSet:
			err = w.writeSet(o)
		case kindChain, kindSources:
			chain, _ := o.Payload.(*nft.Chain)
			c := nft.ChainOp{Kind: o.Kind, Name: o.Key.name, Hash: o.Value.definition, Chain: chain}
			_, err = c.Write(&w.batch, w.table(o.Key.fam))
		case kindRestricted, kindClusterIP, kindFrontend:
			w.writeElement(o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) writeSet(o *op) error {
	s, rendered := o.Payload.(*nfnetlink.Set)
	switch {
	case o.Kind == backends.Remove:
		w.batch.DelSet(w.table(o.Key.fam), o.Key.name)
	case o.Kind == backends.Replace || !rendered: // rules use it
		return nft.MustReplace("set " + o.Key.name)
	default:
		w.batch.AddSet(w.table(o.Key.fam), s)
	}
	return nil
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

// elementOf returns the set that an object is an element of, and its key there.
func elementOf(k *Key) (set string, elem []byte) {
	if a := k.addr.Addr(); a.IsValid() {
		elem = append(elem, a.AsSlice()...)
	}
	if k.kind == kindClusterIP {
		return setClusterIPs, elem
	}
	elem = append(elem, k.protocol, 0, 0, 0)
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
