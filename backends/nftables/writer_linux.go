package nftables

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// writer turns operations into one transaction.
type writer struct {
	*kernel
	slots slotPlan
	// slotsDone says that the changes of slots have been written.
	slotsDone bool
	purges    []purge
	count     uint64
	// elements is the writer of the last element, which most often is that of
	// the next.
	elements nfnetlink.ElementWriter
	target   elementTarget
	tag      []byte
}

type elementTarget struct {
	op  nfnetlink.Op
	fam family
	set string
}

func (w *writer) write(ops []op) error {
	w.slots.plan(ops, w.kernel.slots)
	var removed []familyName
	for i := range ops {
		if ops[i].Kind == backends.Remove && ops[i].Key.kind == kindSet {
			removed = append(removed, familyName{ops[i].Key.fam, ops[i].Key.name})
		}
	}
	for i := range ops {
		o := &ops[i]
		var err error
		switch o.Key.kind {
		case kindTable:
			err = w.writeTable(o)
		case kindSet:
			err = w.writeSet(o)
		case kindChain:
			err = w.writeChain(o)
		case kindEndpoint:
			w.writeSlots()
		case kindSticky:
			if o.Kind == backends.Remove && !slices.Contains(removed, familyName{o.Key.fam, o.Key.name}) {
				w.purges = append(w.purges, purge{fam: o.Key.fam, set: w.book.names.of(o.Key.fam).text(o.Key.name), slot: o.Key.slot()})
			}
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
	t := w.table(o.Key.fam)
	if o.Key.name != noName {
		t.Name = w.book.names.of(o.Key.fam).text(o.Key.name)
	}
	switch o.Kind {
	case backends.Add:
		w.batch.AddTable(t, "")
	case backends.Remove:
		w.batch.DelTable(t)
	case backends.Replace:
		return mustReplace("the table")
	}
	return nil
}

// mustReplace is for what cannot be changed in place: everything is made again
// beside it.
func mustReplace(what string) error {
	return fmt.Errorf("nftables: %w: %s cannot be changed in place", backends.ErrReplace, what)
}

func (w *writer) writeSet(o *op) error {
	t, name := w.table(o.Key.fam), w.book.names.of(o.Key.fam).text(o.Key.name)
	w.count++
	switch o.Kind {
	case backends.Replace:
		return mustReplace("set " + name)
	case backends.Remove:
		w.batch.DelSet(t, name)
		return nil
	case backends.Add:
	}
	d, err := w.book.set(definitionID{o.Key.fam, name, o.Value})
	if err != nil {
		return err
	}
	if d.lasting {
		size := w.limits.set
		if wanted := w.wanted.byName(o.Key.fam, name); wanted != nil {
			size = w.limits.sizeFor(*wanted)
		}
		if f := w.fills.byName(o.Key.fam, name); f != nil {
			*f = fill{size: size}
		}
		d.set.Size = uint32(size)
	}
	w.batch.AddSet(t, &d.set)
	n := o.Key.fam.addrLen()
	for _, r := range d.ranges {
		e := w.into(nfnetlink.OpAdd, o.Key.fam, name)
		e.Key(r.first[:n])
		w.count++
		if !r.open {
			e.KeyEnd(r.behind[:n])
		}
	}
	return nil
}

func (w *writer) writeChain(o *op) error {
	t, name := w.table(o.Key.fam), w.book.names.of(o.Key.fam).text(o.Key.name)
	w.count++
	if o.Kind != backends.Add {
		w.batch.FlushChain(t, name)
	}
	if o.Kind == backends.Remove {
		w.batch.DelChain(t, name)
		return nil
	}
	d, err := w.book.chain(definitionID{o.Key.fam, name, o.Value})
	if err != nil {
		return err
	}
	c := nfnetlink.Chain{Name: name}
	if d.base != nil {
		c.Base = *d.base
		if o.Kind == backends.Replace {
			w.batch.DelChain(t, name)
		}
	}
	if o.Kind == backends.Add || d.base != nil {
		w.batch.AddChain(t, c)
	}
	own := tag{hash: o.Value, chain: chainTag(name), n: uint16(len(d.rules))}
	for i, r := range d.rules {
		own.i = uint16(i)
		w.tag = own.append(w.tag[:0])
		w.batch.AddEncodedRule(t, name, r, w.tag)
		w.count++
	}
	return nil
}

// into gives the writer for elements of a set.
func (w *writer) into(o nfnetlink.Op, fam family, set string) *nfnetlink.ElementWriter {
	target := elementTarget{o, fam, set}
	if target != w.target {
		w.target, w.elements = target, w.batch.Elements(o, w.table(fam), set)
	}
	return &w.elements
}

// writeElement writes an element of one of the sets that every table has, but
// for endpoints.
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
	case o.Value == to(noName):
		e.KeyVerdict(elem, nfnetlink.VerdictDrop, "")
	case k.kind == kindRestriction:
		e.KeyVerdict(elem, nfnetlink.VerdictJump, w.book.names.of(o.Key.fam).text(o.Value.chain()))
	default:
		e.KeyVerdict(elem, nfnetlink.VerdictGoto, w.book.names.of(o.Key.fam).text(o.Value.chain()))
	}
}

// elementOf gives the set that an object is an element of, and its key there.
func elementOf(b []byte, k *key) (set string, elem []byte) {
	n := k.fam.addrLen()
	nodePort := k.addr == [16]byte{}
	switch k.kind {
	case kindHairpin:
		return setHairpins, append(append(b, k.eaddr[:n]...), k.eaddr[:n]...)
	case kindClusterIP:
		return setClusterIPs, append(b, k.addr[:n]...)
	case kindNodePortClient:
		s := k.slot()
		return setNodePortClients, s.append(k.slotPool().append(b), k.fam)
	case kindRestriction:
		set = setRestrictions
	case kindRecord:
		if set = setRecorders; nodePort {
			set = setNodePortRecorders
		}
	default:
		if set = setServices; nodePort {
			set = setNodePorts
		}
	}
	return set, k.slotPool().append(b)
}

// append writes the frontend of a pool as key: address, but for node ports,
// protocol and port, each filled up to four bytes.
func (p slotPool) append(b []byte) []byte {
	if p.addr != [16]byte{} {
		b = append(b, p.addr[:p.fam.addrLen()]...)
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
	for i := range w.slots.pools {
		p := &w.slots.pools[i]
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
func (s *slot) append(b []byte, fam family) []byte {
	b = append(b, s.addr[:fam.addrLen()]...)
	b = binary.BigEndian.AppendUint16(b, s.port)
	return append(b, 0, 0)
}
