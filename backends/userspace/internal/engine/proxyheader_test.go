package engine

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestProxyHeaderText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to, want string }{
		{"192.0.2.1:1234", "10.96.0.1:80", "PROXY TCP4 192.0.2.1 10.96.0.1 1234 80\r\n"},
		{"[2001:db8::1]:65535", "[fd00::1]:443", "PROXY TCP6 2001:db8::1 fd00::1 65535 443\r\n"},
		{"192.0.2.1:1", "[fd00::1]:443", "PROXY TCP6 ::ffff:192.0.2.1 fd00::1 1 443\r\n"},
		{"[2001:db8::1]:1", "10.96.0.1:80", "PROXY TCP6 2001:db8::1 ::ffff:10.96.0.1 1 80\r\n"},
	} {
		got := string(proxyHeader(1, netip.MustParseAddrPort(c.from), netip.MustParseAddrPort(c.to)))
		testenv.Same(t, c.want, got, "from %s to %s", c.from, c.to)
	}
	for _, version := range []int{-1, 0, 3} {
		if got := proxyHeader(version, memoryClient, memoryFrontend); got != nil {
			t.Errorf("version %d: got %q, want nothing", version, got)
		}
	}
}

// readHeader parses a header of version 2 as the PROXY protocol specifies it.
func readHeader(b []byte) (from, to netip.AddrPort, err error) {
	if len(b) < 16 || string(b[:12]) != "\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a" || b[12] != 0x21 {
		return from, to, fmt.Errorf("%x is no header of version 2", b)
	}
	size := map[byte]int{0x11: 4, 0x21: 16}[b[13]]
	rest := b[16:]
	if size == 0 || len(rest) != 2*size+4 || int(binary.BigEndian.Uint16(b[14:])) != len(rest) {
		return from, to, fmt.Errorf("%x has a wrong length or family", b)
	}
	one, _ := netip.AddrFromSlice(rest[:size])
	two, _ := netip.AddrFromSlice(rest[size : 2*size])
	return netip.AddrPortFrom(one, binary.BigEndian.Uint16(rest[2*size:])), netip.AddrPortFrom(two, binary.BigEndian.Uint16(rest[2*size+2:])), nil
}

func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte{192, 0, 2, 1}, []byte{10, 0, 0, 1}, uint16(1), uint16(80))
	f.Add(make([]byte, 16), []byte{10, 0, 0, 1}, uint16(0), uint16(65535))
	f.Add([]byte{10, 0, 0, 1}, make([]byte, 16), uint16(65535), uint16(0))
	f.Fuzz(func(t *testing.T, a, b []byte, ap, bp uint16) {
		one, ok1 := netip.AddrFromSlice(a)
		two, ok2 := netip.AddrFromSlice(b)
		if !ok1 || !ok2 {
			return
		}
		from, to := netip.AddrPortFrom(one, ap), netip.AddrPortFrom(two, bp)
		gotFrom, gotTo, err := readHeader(proxyHeader(2, from, to))
		if err != nil || ipaddr.Unmap(gotFrom) != ipaddr.Unmap(from) || ipaddr.Unmap(gotTo) != ipaddr.Unmap(to) {
			t.Errorf("from %v to %v: got %v, %v, error %v", from, to, gotFrom, gotTo, err)
		}
	})
}

func TestProxyHeaderIsSent(t *testing.T) {
	t.Parallel()
	w := newFixture(t, Config{Hooks: Hooks{ProxyProtocol: func(proxy.ServicePortName) int { return 2 }}}, v1.ProtocolTCP)
	at := w.listen(t)
	header := make(chan []byte, 1)
	w.serveAt(at, server(t, func(c net.Conn) {
		b := make([]byte, 16+12)
		_, _ = io.ReadFull(c, b)
		header <- b
	}))
	c := dialTo(t, at)
	from, to, err := readHeader(<-header)
	got := []string{from.String(), to.String(), fmt.Sprint(err)}
	testenv.Same(t, []string{c.LocalAddr().String(), at.String(), "<nil>"}, got, "client, frontend, error")
}
