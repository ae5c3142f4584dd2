package scale

import (
	"encoding/binary"
	"math/bits"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// floor writes the elements of the backend nftables, without anything else: no snapshots, no
// rendering, no comparison.
type floor struct {
	*testing.B
	services, endpoints int
	conn                *nfnetlink.Conn
	batch               nfnetlink.Batch
}

func newFloor(b *testing.B) *floor {
	return &floor{
		B: b, services: testenv.Count(b, "VIPKIT_SERVICES", 1000), endpoints: testenv.Count(b, "VIPKIT_ENDPOINTS", 10),
		conn: netnstest.Open(b, netnstest.NewNS(b), nfnetlink.Open),
	}
}

// measureFloor measures what nf_tables itself takes: for everything, and for one endpoint replaced.
func measureFloor(b *testing.B) {
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			f := newFloor(b)
			b.StartTimer()
			f.cold()
		}
	})
	b.Run("endpoint", func(b *testing.B) {
		f := newFloor(b)
		f.cold()
		var took []time.Duration
		b.ResetTimer()
		for i := 0; b.Loop(); i++ {
			start := time.Now()
			f.replace(i)
			took = append(took, time.Since(start))
		}
		reportPercentiles(b, took)
	})
}

func table() nfnetlink.Table { return nfnetlink.Table{Family: nfnetlink.IPv4, Name: "floor"} }

func (f *floor) add(set string) nfnetlink.ElementWriter {
	return f.batch.Elements(nfnetlink.OpAdd, table(), set)
}

func (f *floor) commit() {
	testenv.NoError(f, f.conn.Commit(f.Context(), &f.batch))
	f.batch.Reset()
}

// cold writes the sets and all elements, in transactions of the size that the backend uses.
func (f *floor) cold() {
	to := []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.DestPort}
	front := []nfnetlink.Selector{nfnetlink.DestAddr, nfnetlink.L4Proto, nfnetlink.DestPort}
	f.batch.AddTable(table())
	f.batch.AddChain(table(), nfnetlink.Chain{Name: "pick"})
	for _, s := range []nfnetlink.Set{
		{Name: "cluster-ips", Key: front[:1]},
		{Name: "hairpins", Key: []nfnetlink.Selector{nfnetlink.SourceAddr, nfnetlink.DestAddr}},
		{Name: "services", Key: front, Verdicts: true},
		{Name: "endpoints", Key: append(front, nfnetlink.RandomIndex), Data: to},
	} {
		s.Size = max(1024, uint32(1)<<bits.Len(uint(2*f.services*f.endpoints-1))) // as the backend would choose
		f.batch.AddSet(table(), &s)
	}
	const chunk = 1600
	for from := 0; from < f.services; from += chunk {
		targets, hairpins, clusterIPs, services := f.add("endpoints"), f.add("hairpins"), f.add("cluster-ips"), f.add("services")
		to := min(from+chunk, f.services)
		for i := from; i < to; i++ {
			for slot := range f.endpoints {
				targets.KeyData(slotKey(i, slot), target(i*f.endpoints+slot))
			}
		}
		for e := from * f.endpoints; e < to*f.endpoints; e++ {
			hairpins.Key(hairpin(e))
		}
		for i := from; i < to; i++ {
			clusterIPs.Key(clusterIP(i).AsSlice())
		}
		for i := from; i < to; i++ {
			services.KeyVerdict(frontend(i), nfnetlink.VerdictGoto, "pick")
		}
		f.commit()
	}
}

// replace gives a slot its n-th new endpoint. Each slot gets one at most.
func (f *floor) replace(n int) {
	n %= f.services * f.endpoints
	key := slotKey(n/f.endpoints, n%f.endpoints)
	now := f.services*f.endpoints + n
	w := f.batch.Elements(nfnetlink.OpDelete, table(), "endpoints")
	w.Key(key)
	w = f.add("endpoints")
	w.KeyData(key, target(now))
	w = f.add("hairpins")
	w.Key(hairpin(now))
	w = f.batch.Elements(nfnetlink.OpDelete, table(), "hairpins")
	w.Key(hairpin(n))
	f.commit()
}

// frontend, slotKey, target and hairpin return elements in the kernel's format: each field is
// padded to four bytes.
func frontend(service int) []byte {
	return append(clusterIP(service).AsSlice(), unix.IPPROTO_TCP, 0, 0, 0, 0, 80, 0, 0)
}

func slotKey(service, slot int) []byte {
	return binary.NativeEndian.AppendUint32(frontend(service), uint32(slot))
}

func target(e int) []byte { return append(endpoint(e).AsSlice(), 8080>>8, 8080&0xff, 0, 0) }

func hairpin(e int) []byte {
	a := endpoint(e).AsSlice()
	return append(a, a...)
}
