package nfnetlink

import (
	"bytes"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Decoding arbitrary bytes ends, does not panic, and returns no more messages and elements
// than the bytes can contain.
func FuzzMessages(f *testing.F) {
	table := Table{Family: IPv4, Name: "vip"}
	var b Batch
	addBalancer(&b, table)
	f.Add(bytes.Clone(b.seal(1)))
	f.Add(slices.Concat(answer(1, unix.ENOENT, rawnetlink.AppendString(nil, unix.NLMSGERR_ATTR_MSG, "text")), done(1, 0, unix.EINTR)))
	f.Add([]byte{255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(wire(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM, 0, 1, []byte{2, 0, 0, 0, 3, 0, 1, 0}))
	f.Fuzz(func(t *testing.T, data []byte) {
		rest := messages(data)
		for n := 0; ; n++ {
			m, ok := rest.Next()
			if !ok {
				break
			}
			if n > len(data)/unix.NLMSG_HDRLEN {
				t.Fatalf("%d messages in %d bytes", n, len(data))
			}
			decodeAll(t, m)
		}
		_, _, _ = findReply(data, 1, 1)
	})
}

// decodeAll decodes a message as each kind of object.
func decodeAll(t *testing.T, m message) {
	_, _ = m.Outcome()
	_ = generationOf(m)
	a := attributesOf(m)
	_ = a.Check()
	_ = parseTable(a)
	_ = parseChain(a)
	i := parseRule(a)
	_ = i.Tag()
	for s := range i.Steps() {
		_ = s.Number(1)
		_, _, _ = s.Verdict()
	}
	_ = parseSet(a)
	n := 0
	var e Element
	list := a.Find(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	_ = eachElement(list, &e, func(e *Element) error {
		if n++; n > len(list)/attrLen {
			t.Fatalf("%d elements in %d bytes", n, len(list))
		}
		if len(e.Key)+len(e.Data)+len(e.Chain) > len(list) {
			t.Fatalf("an element of %d bytes in a list of %d", len(e.Key)+len(e.Data)+len(e.Chain), len(list))
		}
		return nil
	})
}
