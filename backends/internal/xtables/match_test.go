package xtables

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// runFilter runs a BPF program on a packet, and returns how many bytes of the packet it
// accepts. It supports only the instructions of [HairpinProgram].
func runFilter(t *testing.T, program string, packet []byte) uint32 {
	t.Helper()
	code := strings.Split(strings.Trim(program, `"`), ",")
	if n, err := strconv.Atoi(code[0]); err != nil || n != len(code)-1 {
		t.Fatalf("instructions of %s: got %d, want as many as it says", program, len(code)-1)
	}
	code = code[1:]
	var a, x uint32
	for at := 0; at < len(code); at++ { // the program only jumps forward
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
			t.Fatalf("unknown instruction: %s", code[at])
		}
	}
	t.Fatalf("program %s: got no return, want one", program)
	return 0
}

// The hairpin program compares all bits of both addresses, and nothing else.
func TestHairpin(t *testing.T) {
	t.Parallel()
	r := testenv.Random(t)
	for family, at := range map[v1.IPFamily]struct{ source, dest, size int }{v1.IPv4Protocol: {12, 16, 4}, v1.IPv6Protocol: {8, 24, 16}} {
		p := HairpinProgram(family)
		for range 100 {
			packet := make([]byte, 60)
			for i := range packet {
				packet[i] = byte(r.Uint32())
			}
			source, dest := packet[at.source:at.source+at.size], packet[at.dest:at.dest+at.size]
			copy(dest, source)
			if runFilter(t, p, packet) == 0 {
				t.Fatalf("%s: packet with equal addresses matches: got false, want true: %x", family, packet)
			}
			for bit := range 8 * at.size {
				dest[bit/8] ^= 1 << (bit % 8)
				if runFilter(t, p, packet) != 0 {
					from, _ := netip.AddrFromSlice(source)
					to, _ := netip.AddrFromSlice(dest)
					t.Fatalf("packet from %v to %v matches: got true, want false", from, to)
				}
				dest[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
}

// A criterion for pods becomes a match that iptables accepts, or an error.
func TestInterfacesOfPods(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("x", 15)
	for _, c := range []struct {
		name, prefix string
		want         []string
	}{
		{"cni0", "", []string{"-i cni0 "}},
		{"a~", "", []string{"-i a~ "}},
		{"", "veth", []string{"-i veth+ "}},
		{longest, longest[1:], []string{"-i " + longest + " ", "-i " + longest[1:] + "+ "}},
		{"", longest, []string{"-i " + longest + " "}},
		{longest + "x", "", nil},
		{"", "-j", nil},
		{"a b", "", nil},
		{"", "a\nCOMMIT", nil},
		{"a\" -j DROP", "", nil},
		{"a+", "", nil},
		{"é", "", nil},
	} {
		traffic := proxy.LocalTraffic{Interface: c.name, InterfacePrefix: c.prefix}
		_, pods := MatchPods(v1.IPv4Protocol, traffic)
		err := CheckInterfaces(traffic)
		if (err != nil) != (c.want == nil) || err == nil && !slices.Equal(pods, c.want) {
			t.Errorf("interface %q, prefix %q: got matches %q and error %v, want %q", c.name, c.prefix, pods, err, c.want)
		}
	}
}

// Ranges are written as iptables prints them.
func TestMatchRange(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"10.1.2.3/8": "-s 10.0.0.0/8 ", "192.0.2.1/32": "-s 192.0.2.1/32 ", "0.0.0.0/0": "", "fd00::1/64": "-s fd00::/64 ", "::/0": "",
	} {
		if got := MatchRange("-s", netip.MustParsePrefix(text)); got != want {
			t.Errorf("MatchRange(-s, %s): got %q, want %q", text, got, want)
		}
	}
}
