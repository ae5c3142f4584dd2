package ipvs

import (
	"bytes"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/rawnetlink"
)

func byAddr(protocol uint8, addr string) ServiceKey {
	return ServiceKey{Protocol: protocol, Addr: netip.MustParseAddrPort(addr)}
}

func to(addr string, weight uint32) Destination {
	return Destination{Addr: netip.MustParseAddrPort(addr), Weight: weight}
}

// The part of a request that is the same in the kernel's answers is decoded to what it was
// encoded from. What only the kernel sends is tested with the kernel.
func TestEncodedIsDecoded(t *testing.T) {
	for _, k := range []ServiceKey{
		byAddr(6, "192.0.2.1:80"),
		byAddr(132, "[2001:db8::1]:65535"),
		byAddr(17, "0.0.0.0:1"),
		byAddr(17, "[::ffff:192.0.2.1]:1"),
		{Mark: 0xffffffff},
		{Mark: 1, IPv6: true},
	} {
		for _, c := range []ServiceConfig{
			{},
			{Scheduler: MH, Flags: Persistent | MHFallback | MHPort, Timeout: 1<<32 - 1, Prefix: 31},
			{Scheduler: RR, Prefix: 1},
			{Scheduler: "0123456789abcdefg", Prefix: 32},
		} {
			want := Service{Key: k, Config: c}
			if c.Prefix == 32 && !k.isIPv6() {
				want.Config.Prefix = 0 // the whole address
			}
			got, err := parseService(AddService(k, c).appendTo(nil))
			if err != nil || got != want {
				t.Errorf("%v %+v: got %+v and error %v", k, c, got, err)
			}
		}
	}
	web := byAddr(6, "192.0.2.1:80")
	for _, d := range []Destination{
		to("10.0.0.1:8080", 1),
		{Addr: netip.MustParseAddrPort("10.0.0.1:0"), Weight: 1 << 31, Upper: 1<<32 - 1, Lower: 2, Forwarding: 3},
		{Addr: netip.MustParseAddrPort("[2001:db8::2]:53"), Weight: 1, Forwarding: 2}, // through a tunnel
	} {
		got, err := parseDestination(AddDestination(web, d).appendTo(nil), false)
		if err != nil || got != (DestinationState{Destination: d}) {
			t.Errorf("%+v: got %+v and error %v", d, got, err)
		}
	}
	six := to("[2001:db8::2]:53", 7)
	got, err := parseDestination(SetDestination(byAddr(17, "[2001:db8::1]:53"), six).appendTo(nil), true)
	if err != nil || got.Destination != six {
		t.Errorf("%+v: got %+v and error %v", six, got, err)
	}
}

// Masks of IPv4 are prefixes if they can be.
func TestParsePrefix(t *testing.T) {
	for mask, want := range map[[4]byte]uint8{
		{255, 255, 255, 255}: 0,
		{255, 255, 255, 254}: 31,
		{128, 0, 0, 0}:       1,
		{0, 0, 0, 0}:         NoPrefix,
		{255, 0, 255, 0}:     NoPrefix,
		{0, 0, 0, 1}:         NoPrefix,
	} {
		if got := parsePrefix(mask[:], false); got != want {
			t.Errorf("mask %v: got prefix %d, want %d", mask, got, want)
		}
	}
	for length, want := range map[uint32]uint8{128: 0, 127: 127, 1: 1, 1000: NoPrefix} {
		if got := parsePrefix(append32(nil, 0, length)[unix.NLA_HDRLEN:], true); got != want {
			t.Errorf("prefix %d of IPv6: got %d, want %d", length, got, want)
		}
	}
}

// A message without an address is an error, and not a server with the address 0.0.0.0.
func TestMalformed(t *testing.T) {
	web := byAddr(6, "192.0.2.1:80")
	whole := AddDestination(web, to("10.0.0.1:8080", 1)).appendTo(nil)
	short := DelService(ServiceKey{Protocol: 6}).appendTo(nil)
	for _, payload := range [][]byte{nil, whole[:3], whole[:7], whole[:len(whole)-1], short} {
		if s, err := parseService(payload); err == nil {
			t.Errorf("%x: got virtual server %+v, want an error", payload, s)
		}
		if d, err := parseDestination(payload, false); err == nil {
			t.Errorf("%x: got destination %+v, want an error", payload, d)
		}
	}
}

// Encoding operations into memory that is there allocates nothing.
func TestEncodingAllocatesNothing(t *testing.T) {
	web := byAddr(6, "192.0.2.1:80")
	ops := []Op{
		AddService(web, ServiceConfig{Scheduler: RR}),
		AddDestination(web, to("10.0.0.1:8080", 1)),
		DelDestination(web, netip.MustParseAddrPort("10.0.0.2:8080")),
	}
	var r rawnetlink.Requests
	n := testing.AllocsPerRun(100, func() {
		r.Reset()
		for _, o := range ops {
			r.End(o.appendTo(r.Begin(20, 0)))
		}
	})
	if n != 0 {
		t.Errorf("got %v allocations for %d operations, want none", n, len(ops))
	}
}

func TestServiceKeyString(t *testing.T) {
	for k, want := range map[ServiceKey]string{
		byAddr(6, "192.0.2.1:80"):       "TCP 192.0.2.1:80",
		byAddr(17, "[2001:db8::1]:53"):  "UDP [2001:db8::1]:53",
		byAddr(132, "192.0.2.1:9"):      "SCTP 192.0.2.1:9",
		byAddr(1, "192.0.2.1:9"):        "protocol 1 192.0.2.1:9",
		{Mark: 0x7f000001}:              "mark 0x7f000001 of IPv4",
		{Mark: 10, IPv6: true}:          "mark 0xa of IPv6",
		{}:                              "protocol 0 invalid AddrPort",
		{Protocol: 6, Mark: 0xffffffff}: "mark 0xffffffff of IPv4",
	} {
		if got := k.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Decoding arbitrary bytes does not panic. What is decoded without an error is encoded and
// decoded to the same.
func FuzzParse(f *testing.F) {
	web := byAddr(6, "192.0.2.1:80")
	f.Add(AddService(web, ServiceConfig{Scheduler: RR}).appendTo(nil), false)
	f.Add(AddService(ServiceKey{Mark: 7, IPv6: true}, ServiceConfig{Scheduler: MH, Prefix: 64}).appendTo(nil), true)
	f.Add(AddDestination(web, to("10.0.0.1:8080", 1)).appendTo(nil), false)
	f.Add([]byte{0, 0, 0, 0, 4, 0, 1, 128, 3, 0}, true)
	f.Fuzz(func(t *testing.T, payload []byte, isIPv6 bool) {
		if s, err := parseService(payload); err == nil {
			checkService(t, s)
		}
		d, err := parseDestination(payload, isIPv6)
		if err != nil {
			return
		}
		again, err := parseDestination(AddDestination(web, d.Destination).appendTo(nil), d.Addr.Addr().Is6())
		if err != nil || again.Destination != d.Destination {
			t.Errorf("%+v: decoded again to %+v and error %v", d, again, err)
		}
	})
}

func checkService(t *testing.T, s Service) {
	t.Helper()
	if s.Config.Flags&hashed != 0 {
		t.Errorf("%+v: has the flag that the kernel adds", s)
	}
	if s.Config.Prefix > 32 && !s.Key.isIPv6() || bytes.IndexByte([]byte(s.Config.Scheduler), 0) >= 0 {
		return // cannot be encoded
	}
	again, err := parseService(AddService(s.Key, s.Config).appendTo(nil))
	if s.Key.isIPv6() && s.Config.Prefix == 0 || !s.Key.isIPv6() && s.Config.Prefix == 32 {
		again.Config.Prefix = s.Config.Prefix
	}
	if err != nil || again.Key != s.Key || again.Config != s.Config {
		t.Errorf("%+v: decoded again to %+v and error %v", s, again, err)
	}
}
