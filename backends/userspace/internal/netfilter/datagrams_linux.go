package netfilter

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/internal/ipaddr"
)

// sentTo has a socket receive the destination of each datagram.
func sentTo(fd int) error {
	return setByFamily(fd, unix.IP_RECVORIGDSTADDR, unix.IPV6_RECVORIGDSTADDR)
}

// makeRoom enlarges the receive buffer of a socket that all clients share: while the process is
// busy, the kernel drops datagrams that do not fit. With CAP_NET_ADMIN, the buffer exceeds the
// limit of the system (net.core.rmem_max).
func makeRoom(fd int) error {
	const room = 4 << 20
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
}

// packetListener receives datagrams to any frontend.
type packetListener struct {
	*net.UDPConn
	engine.Replier

	// frontend returns the frontend to which a client has sent a datagram, which has the
	// given control messages. It reports false if the datagram must be dropped.
	frontend func(client netip.AddrPort, controls []byte) (netip.AddrPort, bool)

	origin engine.Origin
	oob    [128]byte
}

// Receive implements [engine.PacketListener]. One goroutine calls it.
func (l *packetListener) Receive(buf []byte) (int, engine.Flow, error) {
	n, controls, _, from, err := l.ReadMsgUDPAddrPort(buf, l.oob[:])
	client := ipaddr.Unmap(from)
	f := engine.Flow{Protocol: v1.ProtocolUDP, Origin: l.origin, Client: client}
	if err == nil {
		// The engine drops a datagram without frontend.
		f.Frontend, _ = l.frontend(client, l.oob[:controls])
	}
	return n, f, err
}

// originalDestination returns the destination of a datagram from its control messages. It
// reports false if they have none.
func originalDestination(_ netip.AddrPort, oob []byte) (netip.AddrPort, bool) {
	for len(oob) >= unix.SizeofCmsghdr {
		h, data, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return netip.AddrPort{}, false
		}
		oob = rest
		switch {
		case h.Level == unix.SOL_IP && h.Type == unix.IP_ORIGDSTADDR && len(data) >= 8:
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(data[4:8])), binary.BigEndian.Uint16(data[2:])), true
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_ORIGDSTADDR && len(data) >= 24:
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(data[8:24])), binary.BigEndian.Uint16(data[2:])), true
		}
	}
	return netip.AddrPort{}, false
}

// replier sends datagrams from the addresses of frontends, through one raw socket: there may
// be any number of frontends, and a second socket cannot bind to an address that a program of
// the node uses.
type replier struct {
	six bool

	mu sync.RWMutex
	fd int // -1 when closed
}

// newReplier opens a replier for an IP family.
func newReplier(s *host.Sockets, f v1.IPFamily) (r *replier, err error) {
	r = &replier{six: f == v1.IPv6Protocol, fd: -1}
	err = s.Do(func() error {
		r.fd, err = unix.Socket(socketFamily(f), unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
		return err
	})
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// Without dropAll, the kernel would copy every datagram to the host to this socket.
	err = errors.Join(transparent(r.fd), dropAll(r.fd))
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt", err), r.Close())
	}
	return r, nil
}

// Close closes the socket.
func (r *replier) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	fd := r.fd
	if r.fd = -1; fd < 0 {
		return net.ErrClosed
	}
	return unix.Close(fd)
}

// Reply implements [engine.Replier].
func (r *replier) Reply(f engine.Flow, datagram []byte) error {
	if len(datagram) > 0xffff-8 {
		return unix.EMSGSIZE
	}
	var head [8]byte
	binary.BigEndian.PutUint16(head[0:], f.Frontend.Port())
	binary.BigEndian.PutUint16(head[2:], f.Client.Port())
	binary.BigEndian.PutUint16(head[4:], uint16(8+len(datagram)))
	binary.BigEndian.PutUint16(head[6:], checksum(f.Frontend.Addr(), f.Client.Addr(), head[:], datagram))
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: r.four(f.Client.Addr())}
	controls := unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: r.four(f.Frontend.Addr())})
	if r.six {
		to = &unix.SockaddrInet6{Addr: f.Client.Addr().As16()}
		controls = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: f.Frontend.Addr().As16()})
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.fd < 0 {
		return net.ErrClosed
	}
	_, err := unix.SendmsgBuffers(r.fd, [][]byte{head[:], datagram}, controls, to, unix.MSG_DONTWAIT)
	return os.NewSyscallError("sendmsg", err)
}

func (r *replier) four(a netip.Addr) [4]byte {
	if r.six {
		return [4]byte{}
	}
	return a.As4()
}

// checksum returns the checksum of a UDP datagram.
func checksum(from, to netip.Addr, head, data []byte) uint16 {
	sum := uint64(unix.IPPROTO_UDP) + uint64(len(head)+len(data))
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), head, data} {
		for ; len(part) >= 4; part = part[4:] {
			sum += uint64(binary.BigEndian.Uint32(part))
		}
		if len(part) >= 2 {
			sum += uint64(binary.BigEndian.Uint16(part))
			part = part[2:]
		}
		if len(part) == 1 {
			sum += uint64(part[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	if c := ^uint16(sum); c != 0 {
		return c
	}
	return 0xffff
}
