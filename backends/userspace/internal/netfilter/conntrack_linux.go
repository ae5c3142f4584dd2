package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// translatedFrom returns the destination of a connection before its translation.
func translatedFrom(conn net.Conn) (to netip.AddrPort, err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return to, fmt.Errorf("original destination of a %T: %w", conn, errors.ErrUnsupported)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	local, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return to, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { to, failed = socketDestination(int(fd), local.Addr().Unmap().Is6()) })
	return to, errors.Join(err, os.NewSyscallError("getsockopt", failed))
}

// socketDestination reads SO_ORIGINAL_DST, through options of the same size.
func socketDestination(fd int, six bool) (netip.AddrPort, error) {
	if six {
		a, err := unix.GetsockoptIPv6MTUInfo(fd, unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
		if err != nil {
			return netip.AddrPort{}, err
		}
		port := binary.NativeEndian.AppendUint16(nil, a.Addr.Port)
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr.Addr), binary.BigEndian.Uint16(port)), nil
	}
	a, err := unix.GetsockoptIPv6Mreq(fd, unix.SOL_IP, unix.SO_ORIGINAL_DST)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.Multiaddr[4:8])), binary.BigEndian.Uint16(a.Multiaddr[2:])), nil
}

// conntrack queries connection tracking for the destination of datagrams before their
// translation. It does so for each datagram: the client's next datagram may be to another
// frontend, and has the same addresses after translation.
type conntrack struct{ *host.Query }

func newConntrack(s *host.Sockets) (*conntrack, error) {
	q, err := s.Query(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("%w: querying connection tracking: %w", proxy.ErrUnsupported, err)
	}
	return &conntrack{q}, nil
}

// sameSocket answers datagrams from the socket that has received them: connection tracking
// translates its address to the frontend.
type sameSocket struct{ conn *net.UDPConn }

// Reply implements [engine.Replier].
func (r sameSocket) Reply(f engine.Flow, datagram []byte) error {
	_, err := r.conn.WriteToUDPAddrPort(datagram, f.Client)
	return err
}

// Numbers of the kernel's header linux/netfilter/nfnetlink_conntrack.h.
const (
	getConnection                               = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	tupleOriginal, tupleReply                   = 1, 2
	tupleAddrs, tuplePorts                      = 1, 2
	source4, destination4                       = 1, 2
	source6, destination6                       = 3, 4
	protocolIs, sourcePortIs, destinationPortIs = 1, 2, 3
)

// frontend returns the destination, before translation, of datagrams of a client to a listener.
func (c *conntrack) frontend(client, listener netip.AddrPort) (netip.AddrPort, error) {
	fam, src, dst := nfnetlink.IPv4, source4, destination4
	if listener.Addr().Is6() {
		fam, src, dst = nfnetlink.IPv6, source6, destination6
	}
	reply := nl.NewRtAttr(unix.NLA_F_NESTED|tupleReply, nil)
	addrs := reply.AddRtAttr(unix.NLA_F_NESTED|tupleAddrs, nil)
	addrs.AddRtAttr(src, listener.Addr().AsSlice())
	addrs.AddRtAttr(dst, client.Addr().AsSlice())
	ports := reply.AddRtAttr(unix.NLA_F_NESTED|tuplePorts, nil)
	ports.AddRtAttr(protocolIs, []byte{unix.IPPROTO_UDP})
	ports.AddRtAttr(sourcePortIs, binary.BigEndian.AppendUint16(nil, listener.Port()))
	ports.AddRtAttr(destinationPortIs, binary.BigEndian.AppendUint16(nil, client.Port()))
	request := nl.NewNetlinkRequest(getConnection, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(fam), Version: nl.NFNETLINK_V0})
	request.AddData(reply)
	var to netip.AddrPort
	err := c.Do(request, func(answer []byte) (err error) {
		to, err = originalOf(answer[min(nl.SizeofNfgenmsg, len(answer)):], uint16(dst))
		return err
	})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("userspace: conntrack entry of a datagram: %w", err)
	}
	return to, nil
}

// originalOf returns the destination before translation from the kernel's description of a flow.
func originalOf(b []byte, address uint16) (netip.AddrPort, error) {
	original := rawnetlink.Attrs(rawnetlink.Attrs(b).Find(tupleOriginal))
	a := rawnetlink.Attrs(original.Find(tupleAddrs)).Find(address)
	p := rawnetlink.Attrs(original.Find(tuplePorts)).Find(destinationPortIs)
	addr, ok := netip.AddrFromSlice(a)
	if !ok || len(p) != 2 {
		return netip.AddrPort{}, fmt.Errorf("original destination: address of %d bytes and port of %d", len(a), len(p))
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(p)), nil
}
