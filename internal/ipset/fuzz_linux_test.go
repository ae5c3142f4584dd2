package ipset

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/rawnetlink"
)

// Reading arbitrary messages ends without a panic, and gives no more entries than the bytes can
// contain.
func FuzzMessages(f *testing.F) {
	for _, entries := range samples() {
		b := rawnetlink.AppendString(make([]byte, headerLen), attrSetName, "a")
		b, at := rawnetlink.Nest(b, attrEntries)
		for i := range entries {
			b = appendEntry(b, &entries[i], false)
		}
		rawnetlink.Close(b, at)
		f.Add(b)
	}
	for _, s := range kinds() {
		var r rawnetlink.Requests
		b := begin(&r, cmdList, 0, s.Name)
		start := len(b)
		b = rawnetlink.AppendString(b, attrTypeName, string(s.Type))
		b, at := rawnetlink.Nest(b, attrData)
		b = appendUint32(b, attrOptions, optionSkbInfo|optionForceAdd)
		b = appendUint32(b, attrTimeout, 7)
		b = appendUint8(b, attrNetmask, 24)
		rawnetlink.Close(b, at)
		f.Add(bytes.Clone(b[start-8-headerLen:]))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := attributes(data)
		if err != nil {
			return
		}
		if i, err := parseInfo(a); err == nil {
			_ = i.differences(Set{Name: i.Name, Type: i.Type})
		}
		n := 0
		_ = eachEntry(a.Find(attrEntries), func(e Entry) error {
			if n++; n > len(data)/4 {
				t.Fatalf("%d entries in %d bytes", n, len(data))
			}
			_ = e.String()
			_ = e.check()
			return nil
		})
	})
}

// entryOf makes an entry of bytes: lengths of the two addresses and of the network, protocol,
// port, the addresses.
func entryOf(key []byte) (e Entry) {
	b := make([]byte, 38)
	copy(b, key)
	length := func(n byte) int { return [...]int{0, 4, 16}[n%3] }
	e.Addr, _ = netip.AddrFromSlice(b[6 : 6+length(b[0])])
	if a, ok := netip.AddrFromSlice(b[22 : 22+length(b[1])]); ok {
		e.Net = netip.PrefixFrom(a, int(b[2]))
	}
	e.Protocol, e.Port = b[3], uint16Of(b[4:])
	return e
}

// keyOf is the inverse of entryOf.
func keyOf(e Entry) []byte {
	length := func(a netip.Addr) byte { return byte((a.BitLen()/8 + 4) / 8) }
	b := []byte{length(e.Addr), length(e.Net.Addr()), byte(max(e.Net.Bits(), 0)), e.Protocol, byte(e.Port >> 8), byte(e.Port)}
	b = append(b, make([]byte, 32)...)
	copy(b[6:], e.Addr.AsSlice())
	copy(b[22:], e.Net.Addr().AsSlice())
	return b
}

// An entry is read as it was written, if check allows it.
func FuzzEntry(f *testing.F) {
	for _, entries := range samples() {
		for _, e := range entries {
			if got := entryOf(keyOf(e)); got.String() != e.String() {
				f.Fatalf("got %v, want %v", got, e)
			}
			f.Add(keyOf(e), e.Mark)
		}
	}
	f.Fuzz(func(t *testing.T, key []byte, mark uint32) {
		e := entryOf(key)
		e.Mark = mark
		if e.check() != nil {
			return
		}
		b := appendEntry(nil, &e, false)
		if len(b) > maxEntry {
			t.Fatalf("entry of %d bytes, want at most %d", len(b), maxEntry)
		}
		typ, v, ok := (*rawnetlink.Attrs)(&b).Next()
		if !ok || typ != attrData || len(b) != 0 {
			t.Fatalf("attribute: got %d, %v and %d more bytes, want only %d", typ, ok, len(b), attrData)
		}
		got, err := parseEntry(v)
		if err != nil || got != e {
			t.Fatalf("got %+v, error %v, want %+v", got, err, e)
		}
		e.Mark = 0
		if got, err := parseEntry(appendEntry(nil, &e, true)[unix.NLA_HDRLEN:]); err != nil || got != e {
			t.Fatalf("deletion: got %+v, error %v, want %+v", got, err, e)
		}
	})
}
