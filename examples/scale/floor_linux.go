package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
)

// floorBench writes the same elements as the nftables backend, without anything else: no
// snapshots, no rendering, no comparison.
type floorBench struct {
	world *world
	conn  *nfnetlink.Conn
	batch nfnetlink.Batch
}

// floorTable returns the table that the floor writes to.
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
	return r.measureFloor(f.world, func() error { return f.cold(r.Services * r.Endpoints) }, f.replace)
}

// measureFloor measures a cold load, and changes of single endpoints.
func (r *report) measureFloor(w *world, cold func() error, replace func(service, slot int) error) error {
	start := time.Now()
	if err := cold(); err != nil {
		return err
	}
	r.FloorColdMs = milliseconds(time.Since(start))
	var changes []time.Duration
	for range r.Changes {
		service := w.random.IntN(r.Services)
		slot := w.random.IntN(len(w.endpoints[service]))
		start := time.Now()
		if err := replace(service, slot); err != nil {
			return err
		}
		changes = append(changes, time.Since(start))
	}
	r.FloorChangeP50Us, r.FloorChangeP99Us = percentile(changes, 50), percentile(changes, 99)
	return nil
}

// cold writes the tables and all elements, in transactions of the size that the backend uses.
func (f *floorBench) cold(endpoints int) error {
	if err := f.layout(endpoints); err != nil {
		return err
	}
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
	w := f.add("endpoints")
	for i := from; i < to; i++ {
		for slot, e := range f.world.endpoints[i] {
			w.KeyData(slotKey(i, slot), target(e))
		}
	}
	w = f.add("hairpins")
	for i := from; i < to; i++ {
		for _, e := range f.world.endpoints[i] {
			w.Key(hairpin(e))
		}
	}
	w = f.add("cluster-ips")
	for i := from; i < to; i++ {
		w.Key(clusterIP(i).AsSlice())
	}
	w = f.add("services")
	for i := from; i < to; i++ {
		w.KeyVerdict(frontend(i), nfnetlink.VerdictGoto, "pick")
	}
}

// replace replaces the endpoint of a slot.
func (f *floorBench) replace(service, slot int) error {
	old, e := f.world.endpoints[service][slot], f.world.next()
	f.world.endpoints[service][slot] = e
	f.batch.Reset()
	w := f.delete("endpoints")
	w.Key(slotKey(service, slot))
	w = f.add("endpoints")
	w.KeyData(slotKey(service, slot), target(e))
	w = f.add("hairpins")
	w.Key(hairpin(e))
	w = f.delete("hairpins")
	w.Key(hairpin(old))
	return f.conn.Commit(context.Background(), &f.batch)
}

func (f *floorBench) add(set string) nfnetlink.ElementWriter {
	return f.batch.Elements(nfnetlink.OpAdd, floorTable(), set)
}

func (f *floorBench) delete(set string) nfnetlink.ElementWriter {
	return f.batch.Elements(nfnetlink.OpDelete, floorTable(), set)
}

// layout adds the least that makes the elements work: two base chains that look up the
// destination, and one chain that picks an endpoint.
func (f *floorBench) layout(endpoints int) error {
	to := []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.DestPort}
	front := []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.L4Proto, nfnetlink.DestPort}
	slot := []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.L4Proto, nfnetlink.DestPort, nfnetlink.RandomIndex}
	f.batch.AddTable(floorTable())
	for _, s := range []nfnetlink.Set{
		{Name: "cluster-ips", Key: front[:1]},
		{Name: "hairpins", Key: []nfnetlink.Selector{nfnetlink.SourceAddr, nfnetlink.DestAddr}},
		{Name: "services", Key: front, Verdicts: true},
		{Name: "endpoints", Key: slot, Data: to},
	} {
		// The size that the backend would choose.
		s.Size = max(1024, uint32(1)<<bits.Len(uint(2*endpoints-1)))
		f.batch.AddSet(floorTable(), &s)
	}
	pick := f.chain("pick", nfnetlink.BaseChain{}, func(a *nft.Assembler) {
		key, next := a.FrontendKey(false)
		random := &expr.Numgen{Register: next, Modulus: uint32(len(f.world.endpoints[0])), Type: unix.NFT_NG_RANDOM}
		a.Rule(a.Encode(append(key, random, nft.Find("endpoints", nft.Reg0, nft.Reg0))...), a.DNAT())
	})
	toServices := func(a *nft.Assembler) { a.Rule(a.VerdictMap("services", false)) }
	return errors.Join(pick,
		f.chain("prerouting", nfnetlink.BaseChain{Type: "nat", Hook: nfnetlink.Prerouting, Priority: -100}, toServices),
		f.chain("output", nfnetlink.BaseChain{Type: "nat", Hook: nfnetlink.Output, Priority: -100}, toServices))
}

// chain adds a chain.
func (f *floorBench) chain(name string, base nfnetlink.BaseChain, rules func(*nft.Assembler)) error {
	add := nft.ChainOp{Name: name, Chain: &nft.Chain{Base: base, Rules: rules}}
	_, err := add.Write(&f.batch, floorTable())
	return err
}

// frontend, slotKey, target and hairpin return elements in the kernel's format: each field is
// padded to four bytes.
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
