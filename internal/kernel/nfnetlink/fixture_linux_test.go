package nfnetlink

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// concat composes a concatenation of addresses (strings) and numbers, each padded to four
// bytes. Numbers of 16 bits are big-endian, those of 32 bits in host byte order.
func concat(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch v := p.(type) {
		case string:
			b = append(b, netip.MustParseAddr(v).AsSlice()...)
		case byte:
			b = append(b, v)
		case uint16:
			b = binary.BigEndian.AppendUint16(b, v)
		case uint32:
			b = binary.NativeEndian.AppendUint32(b, v)
		default:
			panic("concat: a type that the tests do not use")
		}
		b = rawnetlink.Pad(b)
	}
	return b
}

// addr returns the one of two addresses that is of the family.
func (f Family) addr(v4, v6 string) string {
	if f == IPv6 {
		return v6
	}
	return v4
}

const (
	tcp = byte(unix.IPPROTO_TCP)

	verdictAccept Verdict = 1
	verdictReturn Verdict = unix.NFT_RETURN
)

// balancerSets returns the sets of a small load balancer, one of each kind.
func balancerSets() []*Set {
	service := []Selector{DestAddr, L4Proto, DestPort}
	target := []Selector{DestAddr, DestPort}
	return []*Set{
		{Name: "services", Key: service, Verdicts: true, Size: 1000},
		{Name: "endpoints", Key: append(service[:3:3], RandomIndex), Data: target},
		{Name: "affinity", Key: append([]Selector{SourceAddr}, service...), Data: target,
			Flags: SetDynamic | SetTimeout, Size: 65536},
		{Name: "nodeports", Key: []Selector{L4Proto, DestPort}, Verdicts: true},
		{Name: "pods", Key: []Selector{SourceAddr}, Flags: SetInterval},
		{Name: "banned", Key: []Selector{SourceAddr}, Flags: SetTimeout},
		{Name: "ports", Key: []Selector{DestPort}, Data: []Selector{RandomIndex}},
		{Name: "by-source", Key: []Selector{SourceAddr}, Verdicts: true, Flags: SetInterval},
	}
}

// addBalancer adds a table that uses every kind of object of this package.
func addBalancer(b *Batch, t Table) {
	fam := t.Family
	b.AddTable(t)
	for _, s := range balancerSets() {
		b.AddSet(t, s)
	}
	b.AddChain(t, Chain{Name: "pick-2"})
	b.AddChain(t, Chain{Name: "nat-prerouting", Base: BaseChain{Type: "nat", Hook: Prerouting, Priority: -100}})
	b.AddChain(t, Chain{Name: "check", Base: BaseChain{Type: "filter", Hook: Forward, Priority: 5}})

	addRule(b, t, "nat-prerouting", []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{tcp}},
		&expr.Counter{},
	})
	byService := append(serviceKey(fam), &expr.Lookup{SourceRegister: 8, SetName: "services", IsDestRegSet: true})
	b.AddRule(t, "nat-prerouting", encoded(fam, byService), appendUdata(nil, udataComment, []byte("by service\x00")))
	addRule(b, t, "pick-2", pickRule(fam))
	b.AddRule(t, "pick-2", encoded(fam, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}), appendUdata(nil, udataComment, []byte("nobody left\x00")))
	addBalancerElements(b, t)
}

// addRule adds a rule with some expressions.
func addRule(b *Batch, t Table, chain string, exprs []expr.Any) {
	b.AddRule(t, chain, encoded(t.Family, exprs), nil)
}

// encoded encodes the expressions of a rule.
func encoded(fam Family, exprs []expr.Any) (list []byte) {
	for _, e := range exprs {
		b, err := expr.Marshal(byte(fam), e)
		if err != nil {
			panic(err)
		}
		list = rawnetlink.AppendAttr(list, unix.NFTA_LIST_ELEM|nested, b)
	}
	return list
}

// flushSet removes all elements of a set.
func flushSet(b *Batch, t Table, name string) {
	b.begin(uint16(OpDelete), 0, t, name)
}

// serviceKey loads address, protocol and port from register 8 on.
func serviceKey(fam Family) []expr.Any {
	if fam == IPv6 {
		return []expr.Any{
			&expr.Payload{DestRegister: 8, Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 16},
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 12},
			&expr.Payload{DestRegister: 13, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		}
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 8, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 9},
		&expr.Payload{DestRegister: 10, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// pickRule sends a connection to one of two endpoints of its service.
func pickRule(fam Family) []expr.Any {
	index, port := uint32(11), uint32(9)
	if fam == IPv6 {
		index, port = 14, 12
	}
	return append(serviceKey(fam),
		&expr.Numgen{Register: index, Modulus: 2, Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: 8, DestRegister: 8, IsDestRegSet: true, SetName: "endpoints"},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(fam), RegAddrMin: 8, RegProtoMin: port, Specified: true},
	)
}

func addBalancerElements(b *Batch, t Table) {
	fam := t.Family
	vip := fam.addr("10.96.0.1", "fd00:96::1")
	for i := range uint32(2) {
		w := b.Elements(OpAdd, t, "endpoints")
		w.KeyData(concat(vip, tcp, uint16(80), i), concat(fam.addr("10.128.0.1", "fd00:128::1"), uint16(8080+i)))
	}
	w := b.Elements(OpAdd, t, "services")
	w.KeyVerdict(concat(vip, tcp, uint16(80)), VerdictGoto, "pick-2")
	w = b.Elements(OpAdd, t, "nodeports")
	w.KeyVerdict(concat(tcp, uint16(30080)), VerdictJump, "pick-2")
	w.KeyVerdict(concat(tcp, uint16(30081)), VerdictDrop, "")
	w.KeyVerdict(concat(tcp, uint16(30082)), verdictAccept, "")
	w.KeyVerdict(concat(tcp, uint16(30083)), verdictReturn, "")
	w = b.Elements(OpAdd, t, "pods")
	w.Key(concat(fam.addr("10.128.0.0", "fd00:128::")))
	w.KeyEnd(concat(fam.addr("10.129.0.0", "fd00:129::")))
	w = b.Elements(OpAdd, t, "by-source")
	w.KeyVerdict(concat(fam.addr("192.0.2.0", "2001:db8::")), VerdictGoto, "pick-2")
	w.KeyEnd(concat(fam.addr("192.0.2.128", "2001:db8:8000::")))
	w = b.Elements(OpAdd, t, "banned")
	w.Key(concat(fam.addr("198.51.100.1", "2001:db8:1::1")))
	w = b.Elements(OpAdd, t, "ports")
	w.KeyData(binary.BigEndian.AppendUint16(nil, 80), concat(uint32(7)))
}

// balancerText returns nft's listing of the table of addBalancer.
func balancerText(t Table) string { //nolint:funlen // a text
	text := `table ip vip {
	map services {
		typeof ip daddr . meta l4proto . th dport : verdict
		size 1000
		elements = { 10.96.0.1 . tcp . 80 : goto pick-2 }
	}

	map endpoints {
		typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport
		elements = { 10.96.0.1 . tcp . 80 . 0 : 10.128.0.1 . 8080,
			     10.96.0.1 . tcp . 80 . 1 : 10.128.0.1 . 8081 }
	}

	map affinity {
		typeof ip saddr . ip daddr . meta l4proto . th dport : ip daddr . th dport
		size 65536
		flags dynamic,timeout
	}

	map nodeports {
		typeof meta l4proto . th dport : verdict
		elements = { tcp . 30080 : jump pick-2,
			     tcp . 30081 : drop,
			     tcp . 30082 : accept,
			     tcp . 30083 : return }
	}

	set pods {
		typeof ip saddr
		flags interval
		elements = { 10.128.0.0/16 }
	}

	set banned {
		typeof ip saddr
		flags timeout
		elements = { 198.51.100.1 }
	}

	map ports {
		typeof th dport : numgen random mod 2
		elements = { 80 : 7 }
	}

	map by-source {
		typeof ip saddr : verdict
		flags interval
		elements = { 192.0.2.0/25 : goto pick-2 }
	}

	chain pick-2 {
		dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints
		drop comment "nobody left"
	}

	chain nat-prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		meta l4proto tcp counter packets 0 bytes 0
		ip daddr . meta l4proto . th dport vmap @services comment "by service"
	}

	chain check {
		type filter hook forward priority filter + 5; policy accept;
	}
}
`
	if t.Family == IPv6 {
		text = strings.NewReplacer(
			"table ip ", "table ip6 ", "ip daddr", "ip6 daddr", "ip saddr", "ip6 saddr", "dnat ip ", "dnat ip6 ",
			"10.96.0.1", "fd00:96::1", "10.128.0.0/16", "fd00:128::/32", "10.128.0.1", "fd00:128::1",
			"192.0.2.0/25", "2001:db8::/33", "198.51.100.1", "2001:db8:1::1",
		).Replace(text)
	}
	return strings.Replace(text, " vip {", " "+t.Name+" {", 1)
}

// udataComment is the field of the comment of a rule.
const udataComment = 0

func testTables() []Table { return []Table{{Family: IPv4, Name: "vip"}, {Family: IPv6, Name: "vip"}} }

func newBalancer(t testing.TB, c *Conn, table Table) {
	t.Helper()
	var b Batch
	addBalancer(&b, table)
	commit(t, c, &b)
}
