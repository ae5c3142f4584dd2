package userspace

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

	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// translatedFrom gives the frontend that a connection asked for before its
// destination was translated.
func translatedFrom(conn net.Conn) (to netip.AddrPort, err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return to, fmt.Errorf("the destination of a %T: %w", conn, errors.ErrUnsupported)
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

// tracked asks connection tracking what the destination of datagrams was before it
// was translated. It is asked for each datagram: the same client may ask another
// frontend later, and look the same.
type tracked struct{ *asker }

func (s *sockets) tracked() (*tracked, error) {
	a, err := s.asker(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("%w: asking connection tracking: %w", proxy.ErrUnsupported, err)
	}
	return &tracked{a}, nil
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

// frontend gives the destination that datagrams of a client to a door had.
func (t *tracked) frontend(client, door netip.AddrPort) (netip.AddrPort, error) {
	fam, src, dst := nfnetlink.IPv4, source4, destination4
	if door.Addr().Is6() {
		fam, src, dst = nfnetlink.IPv6, source6, destination6
	}
	reply := nl.NewRtAttr(unix.NLA_F_NESTED|tupleReply, nil)
	addrs := reply.AddRtAttr(unix.NLA_F_NESTED|tupleAddrs, nil)
	addrs.AddRtAttr(src, door.Addr().AsSlice())
	addrs.AddRtAttr(dst, client.Addr().AsSlice())
	ports := reply.AddRtAttr(unix.NLA_F_NESTED|tuplePorts, nil)
	ports.AddRtAttr(protocolIs, []byte{protoUDP})
	ports.AddRtAttr(sourcePortIs, binary.BigEndian.AppendUint16(nil, door.Port()))
	ports.AddRtAttr(destinationPortIs, binary.BigEndian.AppendUint16(nil, client.Port()))
	request := nl.NewNetlinkRequest(getConnection, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(fam), Version: nl.NFNETLINK_V0})
	request.AddData(reply)
	var to netip.AddrPort
	err := t.ask(request, func(answer []byte) (err error) {
		to, err = originalOf(answer[min(nl.SizeofNfgenmsg, len(answer)):], uint16(dst))
		return err
	})
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("userspace: the flow of a datagram: %w", err)
	}
	return to, nil
}

// originalOf finds the destination before translation in what the kernel says of
// a flow.
func originalOf(b []byte, address uint16) (netip.AddrPort, error) {
	original, err := attribute(b, tupleOriginal)
	addrs, aerr := attribute(original, tupleAddrs)
	ports, perr := attribute(original, tuplePorts)
	a, derr := attribute(addrs, address)
	p, oerr := attribute(ports, destinationPortIs)
	addr, ok := netip.AddrFromSlice(a)
	if err := errors.Join(err, aerr, perr, derr, oerr); err != nil || !ok || len(p) < 2 {
		return netip.AddrPort{}, fmt.Errorf("it is without destination: %w", err)
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(p)), nil
}
