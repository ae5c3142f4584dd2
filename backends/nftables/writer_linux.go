package nftables

import (
	"encoding/binary"
	"fmt"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
)

// writer writes operations as one transaction.
type writer struct {
	*kernel
	plan slotPlan
	// slotsDone is true after the changes of slots have been written.
	slotsDone bool
	count     uint64
	// elements is the writer of the last element, which most often fits the next one.
	elements nfnetlink.ElementWriter
	target   elementTarget
}

type elementTarget struct {
	op    nfnetlink.Op
	table nfnetlink.Table
	set   string
}

func (w *writer) write(ops []op) error {
	w.plan.plan(ops, w.tables.slots)
	for i := range ops {
		o := &ops[i]
		var err error
		switch o.Key.kind {
		case kindTable:
			err = w.writeTable(o)
		case kindSet:
			err = w.writeSet(o)
		case kindRejectChain, kindPickChain, kindStickChain, kindMasqueradeChain, kindSourceChain, kindDispatchChain, kindBaseChain:
			err = w.writeChain(o)
		case kindEndpoint:
			w.writeSlots()
		case kindSticky: // affinityState.note reads it
		default:
			w.writeElement(o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) writeTable(o *op) error {
	w.count++
	t := w.tables.table(o.Key.fam)
	switch o.Kind {
	case backends.Add:
		w.batch.AddTable(t)
	case backends.Remove:
		w.batch.DelTable(t)
	case backends.Replace:
		return nft.MustReplace("the table")
	}
	return nil
}

func (w *writer) writeSet(o *op) error {
	t, name := w.tables.table(o.Key.fam), text(o.Key.name)
	w.count++
	switch o.Kind {
	case backends.Replace:
		return nft.MustReplace("set " + name)
	case backends.Remove:
		w.batch.DelSet(t, name)
		return nil
	case backends.Add:
	}
	d, ok := o.Payload.(*setDefinition)
	if !ok {
		return fmt.Errorf("nftables: set %s: no definition", name)
	}
	set := d.set
	if d.fixed {
		size := w.limits.set
		if wanted := w.wanted.byName(o.Key.fam, name); wanted != nil {
			size = w.limits.sizeFor(*wanted)
		}
		if f := w.tables.fills.byName(o.Key.fam, name); f != nil {
			*f = fill{size: size}
		}
		set.Size = uint32(size)
	}
	w.batch.AddSet(t, &set)
	n := o.Key.fam.AddrLen()
	for i, first := range d.ranges.first {
		e := w.into(nfnetlink.OpAdd, o.Key.fam, name)
		e.Key(first[:n])
		w.count++
		if i < len(d.ranges.behind) {
			e.KeyEnd(d.ranges.behind[i][:n])
		}
	}
	return nil
}

func (w *writer) writeChain(o *op) error {
	c := nft.ChainOp{Kind: o.Kind, Name: text(o.Key.name), Hash: o.Value.hash}
	c.Chain, _ = o.Payload.(*nft.Chain) // Write returns an error if there is none
	n, err := c.Write(&w.batch, w.tables.table(o.Key.fam))
	w.count += uint64(n)
	return err
}

// into returns the writer for elements of a set.
func (w *writer) into(o nfnetlink.Op, fam nfnetlink.Family, set string) *nfnetlink.ElementWriter {
	target := elementTarget{o, w.tables.table(fam), set}
	if target != w.target {
		w.target, w.elements = target, w.batch.Elements(o, target.table, set)
	}
	return &w.elements
}

// writeElement writes an element of one of the sets that every table has, except for
// endpoints.
func (w *writer) writeElement(o *op) {
	var buf [48]byte
	k := &o.Key
	set, elem := elementOf(buf[:0], k)
	if o.Kind != backends.Add {
		w.into(nfnetlink.OpDelete, k.fam, set).Key(elem)
		w.count++
	}
	if o.Kind == backends.Remove {
		return
	}
	w.count++
	e := w.into(nfnetlink.OpAdd, k.fam, set)
	switch {
	case k.kind == kindHairpin || k.kind == kindClusterIP || k.kind == kindNodePortClient:
		e.Key(elem)
	case o.Value.chain == (handle{}):
		e.KeyVerdict(elem, nfnetlink.VerdictDrop, "")
	case k.kind == kindRestriction:
		e.KeyVerdict(elem, nfnetlink.VerdictJump, text(o.Value.chain))
	default:
		e.KeyVerdict(elem, nfnetlink.VerdictGoto, text(o.Value.chain))
	}
}

// elementOf returns the set that an object is an element of, and its key there.
func elementOf(b []byte, k *key) (set string, elem []byte) {
	n := k.fam.AddrLen()
	switch k.kind {
	case kindHairpin:
		elem = append(append(b, k.eaddr[:n]...), k.eaddr[:n]...)
	case kindClusterIP:
		elem = append(b, k.addr[:n]...)
	case kindNodePortClient:
		s := k.slot()
		elem = s.append(k.slotPool().append(b), k.fam)
	default:
		elem = k.slotPool().append(b)
	}
	return setName(k.setAt()), elem
}

// append writes the frontend of a pool as key: address (except for node ports), protocol
// and port, each padded to four bytes.
func (p slotPool) append(b []byte) []byte {
	if p.addr != [16]byte{} {
		b = append(b, p.addr[:p.fam.AddrLen()]...)
	}
	b = append(b, p.proto, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, p.port)
	return append(b, 0, 0)
}

// writeSlots writes all changes of slots, once.
func (w *writer) writeSlots() {
	if w.slotsDone {
		return
	}
	w.slotsDone = true
	for i := range w.plan.pools {
		p := &w.plan.pools[i]
		set := endpointsMap(p.id.pool, p.id.addr == [16]byte{})
		var buf [64]byte
		k := p.id.append(buf[:0])
		for n := range p.changes {
			c := &p.changes[n]
			elem := binary.NativeEndian.AppendUint32(k, uint32(c.at))
			if c.at < len(p.old) {
				w.into(nfnetlink.OpDelete, p.id.fam, set).Key(elem)
				w.count++
			}
			if c.filled {
				var data [20]byte
				w.into(nfnetlink.OpAdd, p.id.fam, set).KeyData(elem, c.slot.append(data[:0], p.id.fam))
				w.count++
			}
		}
	}
}

// append writes a slot as datum: address and port.
func (s *slot) append(b []byte, fam nfnetlink.Family) []byte {
	b = append(b, s.addr[:fam.AddrLen()]...)
	b = binary.BigEndian.AppendUint16(b, s.port)
	return append(b, 0, 0)
}
