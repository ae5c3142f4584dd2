package main

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// floorBench writes the same elements as the nftables backend with nothing
// around: no objects, no snapshots, no differences.
type floorBench struct {
	world *world
	conn  *nfnetlink.Conn
	batch nfnetlink.Batch
}

// floorTable holds all that the floor writes.
func floorTable() nfnetlink.Table {
	return nfnetlink.Table{Family: nfnetlink.IPv4, Name: "floor"}
}

// measureFloor fills in the floor of the report.
func measureFloor(r *report) (err error) {
	conn, err := nfnetlink.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	f := &floorBench{world: newWorld(r.Services, r.Endpoints), conn: conn}
	start := time.Now()
	if err := f.cold(); err != nil {
		return err
	}
	r.FloorColdMs = milliseconds(time.Since(start))
	var changes []time.Duration
	for range r.Changes {
		service := f.world.random.IntN(r.Services)
		slot := f.world.random.IntN(len(f.world.endpoints[service]))
		start := time.Now()
		if err := f.replace(service, slot); err != nil {
			return err
		}
		changes = append(changes, time.Since(start))
	}
	r.FloorChangeP50Us, r.FloorChangeP99Us = percentile(changes, 50), percentile(changes, 99)
	return nil
}

// cold loads the tables and all elements, in transactions of the size that the
// backend uses.
func (f *floorBench) cold() error {
	f.layout()
	const chunk = 1600
	for from := 0; from < len(f.world.endpoints); from += chunk {
		to := min(from+chunk, len(f.world.endpoints))
		f.chunk(from, to)
		if err := f.conn.Commit(context.Background(), &f.batch); err != nil {
			return err
		}
		f.batch.Reset()
	}
	return nil
}

// chunk adds the elements of a range of services to the batch.
func (f *floorBench) chunk(from, to int) {
	elements := func(set string) nfnetlink.ElementWriter {
		return f.batch.Elements(nfnetlink.OpAdd, floorTable(), set)
	}
	w := elements("endpoints")
	for i := from; i < to; i++ {
		for slot, e := range f.world.endpoints[i] {
			w.KeyData(slotKey(i, slot), target(e))
		}
	}
	w = elements("hairpins")
	for i := from; i < to; i++ {
		for _, e := range f.world.endpoints[i] {
			w.Key(hairpin(e))
		}
	}
	w = elements("cluster-ips")
	for i := from; i < to; i++ {
		w.Key(clusterIP(i).AsSlice())
	}
	w = elements("services")
	for i := from; i < to; i++ {
		w.KeyVerdict(frontend(i), nfnetlink.VerdictGoto, "pick")
	}
}

// replace puts another endpoint in a slot.
func (f *floorBench) replace(service, slot int) error {
	old, e := f.world.endpoints[service][slot], f.world.next()
	f.world.endpoints[service][slot] = e
	f.batch.Reset()
	elements := func(op nfnetlink.Op, set string) nfnetlink.ElementWriter {
		return f.batch.Elements(op, floorTable(), set)
	}
	w := elements(nfnetlink.OpDelete, "endpoints")
	w.Key(slotKey(service, slot))
	w = elements(nfnetlink.OpAdd, "endpoints")
	w.KeyData(slotKey(service, slot), target(e))
	w = elements(nfnetlink.OpAdd, "hairpins")
	w.Key(hairpin(e))
	w = elements(nfnetlink.OpDelete, "hairpins")
	w.Key(hairpin(old))
	return f.conn.Commit(context.Background(), &f.batch)
}

// layout is the least that makes the elements do something: two base chains that
// look the destination up, and one chain that picks an endpoint.
func (f *floorBench) layout() {
	front := []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.L4Proto, nfnetlink.DestPort}
	to := []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.DestPort}
	f.batch.AddTable(floorTable(), "")
	for _, s := range []nfnetlink.Set{
		{Name: "cluster-ips", Key: front[:1]},
		{Name: "hairpins", Key: []nfnetlink.Selector{nfnetlink.SourceAddr, nfnetlink.DestAddr}},
		{Name: "services", Key: front, Verdicts: true},
		{Name: "endpoints", Key: append(slices.Clone(front), nfnetlink.RandomIndex), Data: to},
	} {
		s.Size = room(f.world.count())
		f.batch.AddSet(floorTable(), &s)
	}
	f.batch.AddChain(floorTable(), nfnetlink.Chain{Name: "pick"})
	key := []expr.Any{
		&expr.Payload{DestRegister: 8, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 9},
		&expr.Payload{DestRegister: 10, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
	f.batch.AddRule(floorTable(), "pick", append(slices.Clone(key),
		&expr.Numgen{Register: 11, Modulus: uint32(len(f.world.endpoints[0])), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: 8, DestRegister: 8, IsDestRegSet: true, SetName: "endpoints"},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 8, RegProtoMin: 9, Specified: true}), nil)
	for name, hook := range map[string]nfnetlink.Hook{"prerouting": nfnetlink.Prerouting, "output": nfnetlink.Output} {
		f.batch.AddChain(floorTable(), nfnetlink.Chain{Name: name, Base: nfnetlink.BaseChain{Type: "nat", Hook: hook, Priority: -100}})
		f.batch.AddRule(floorTable(), name, append(slices.Clone(key),
			&expr.Lookup{SourceRegister: 8, DestRegister: 0, IsDestRegSet: true, SetName: "services"}), nil)
	}
}

// room gives a set the size that the backend would give it.
func room(elements int) uint32 {
	size := 1024
	for size < 2*elements {
		size *= 2
	}
	return uint32(size)
}

// frontend, slotKey, target and hairpin give elements in the form that the
// kernel has them in: each field fills up to four bytes.
func frontend(service int) []byte {
	return append(clusterIP(service).AsSlice(), unix.IPPROTO_TCP, 0, 0, 0, 0, servicePort, 0, 0)
}

func slotKey(service, slot int) []byte {
	return binary.NativeEndian.AppendUint32(frontend(service), uint32(slot))
}

func target(endpoint uint32) []byte {
	return append(endpointAddr(endpoint).AsSlice(), endpointPort>>8, endpointPort&0xff, 0, 0)
}

func hairpin(endpoint uint32) []byte {
	a := endpointAddr(endpoint).AsSlice()
	return append(a, a...)
}
