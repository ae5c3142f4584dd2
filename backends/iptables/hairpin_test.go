package iptables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testenv"
)

// filtered runs a program of the kernel's packet filter language, as far as the one here
// goes, on a packet. It gives how much of the packet the program takes.
func filtered(t *testing.T, program string, packet []byte) uint32 {
	t.Helper()
	code := strings.Split(strings.Trim(program, `"`), ",")
	if n, err := strconv.Atoi(code[0]); err != nil || n != len(code)-1 {
		t.Fatalf("the program %s has %d instructions", program, len(code)-1)
	}
	code = code[1:]
	var a, x uint32
	for at := 0; at < len(code); at++ { // it only jumps ahead
		var op, yes, no int
		var k uint32
		if _, err := fmt.Sscan(code[at], &op, &yes, &no, &k); err != nil {
			t.Fatalf("%s: %v", code[at], err)
		}
		const loadWord, keep, ifSame, end = 0x20, 0x07, 0x1d, 0x06
		switch op {
		case loadWord:
			a = binary.BigEndian.Uint32(packet[k:])
		case keep:
			x = a
		case ifSame:
			if at += no; a == x {
				at += yes - no
			}
		case end:
			return k
		default:
			t.Fatalf("no instruction: %s", code[at])
		}
	}
	t.Fatalf("the program %s has no end", program)
	return 0
}

// What finds connections of an endpoint to itself compares all of both addresses, and
// nothing else.
func TestHairpin(t *testing.T) {
	r := testenv.Random(t)
	for family, at := range map[v1.IPFamily]struct{ source, dest, size int }{v1.IPv4Protocol: {12, 16, 4}, v1.IPv6Protocol: {8, 24, 16}} {
		p := (&page{renderer: &renderer{family: family}}).hairpin()
		for range 100 {
			packet := make([]byte, 60)
			for i := range packet {
				packet[i] = byte(r.Uint32())
			}
			source, dest := packet[at.source:at.source+at.size], packet[at.dest:at.dest+at.size]
			copy(dest, source)
			if filtered(t, p, packet) == 0 {
				t.Fatalf("%s: a packet of which source and destination are the same is not found: %x", family, packet)
			}
			for bit := range 8 * at.size {
				dest[bit/8] ^= 1 << (bit % 8)
				if filtered(t, p, packet) != 0 {
					from, _ := netip.AddrFromSlice(source)
					to, _ := netip.AddrFromSlice(dest)
					t.Fatalf("a packet from %v to %v is found", from, to)
				}
				dest[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}
