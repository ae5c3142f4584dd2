package userspace

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// packets opens a door for datagrams. Claim lets it listen at the address.
func (s *sockets) packets(ctx context.Context, at netip.AddrPort, claim func(fd int) error) (p *net.UDPConn, err error) {
	sent := func(fd int) error {
		if at.Addr().Is6() {
			return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_RECVORIGDSTADDR, 1)
		}
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_RECVORIGDSTADDR, 1)
	}
	err = s.do(func() error {
		config := net.ListenConfig{Control: s.prepare(sent, makeRoom, claim)}
		c, err := config.ListenPacket(ctx, "udp", at.String())
		if err != nil {
			return err
		}
		var ok bool
		if p, ok = c.(*net.UDPConn); !ok {
			return errors.Join(errors.ErrUnsupported, c.Close())
		}
		return nil
	})
	return p, err
}

// makeRoom lets much wait at a socket that all clients share: whatever comes while
// the process does not is lost otherwise. What an administrator has set as the limit
// for programs does not count, where one may say so.
func makeRoom(fd int) error {
	const room = 4 << 20
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
}

// packetDoor is where datagrams to any frontend come in.
type packetDoor struct {
	*net.UDPConn
	engine.Replier

	origin engine.Origin
	// frontend finds where a datagram was sent, by its control messages or
	// otherwise.
	frontend func(client netip.AddrPort, controls []byte) (netip.AddrPort, bool)
	oob      [128]byte
}

// Close closes the socket; the replier serves other doors too.
func (d *packetDoor) Close() error { return d.UDPConn.Close() }

// Receive implements [engine.PacketDoor]. One goroutine calls it.
func (d *packetDoor) Receive(buf []byte) (int, engine.Flow, error) {
	n, controls, _, from, err := d.ReadMsgUDPAddrPort(buf, d.oob[:])
	client := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	f := engine.Flow{Protocol: v1.ProtocolUDP, Origin: d.origin, Client: client}
	if err == nil {
		// A datagram without its destination is one to nowhere, which nobody
		// serves.
		f.Frontend, _ = d.frontend(client, d.oob[:controls])
	}
	return n, f, err
}

// asAsked answers from where it was asked: connection tracking makes the frontend
// of it.
type asAsked struct{ conn *net.UDPConn }

// Reply implements [engine.Replier].
func (r asAsked) Reply(f engine.Flow, datagram []byte) error {
	_, err := r.conn.WriteToUDPAddrPort(datagram, f.Client)
	return err
}

// frontendAsSent gives the destination that a datagram still has.
func frontendAsSent(_ netip.AddrPort, controls []byte) (netip.AddrPort, bool) {
	return originalDestination(controls)
}

// originalDestination finds, in control messages, where a datagram was sent.
func originalDestination(oob []byte) (netip.AddrPort, bool) {
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

// replier sends datagrams in the name of frontends, through one raw socket: there
// may be any number of frontends, and where a program of the node's own has an
// address, no second socket can.
type replier struct {
	six bool

	mu sync.RWMutex
	fd int // -1 when closed
}

func (s *sockets) replier(fam nfnetlink.Family) (r *replier, err error) {
	r = &replier{six: fam == nfnetlink.IPv6, fd: -1}
	err = s.do(func() error {
		r.fd, err = unix.Socket(linkFamily(fam), unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
		return err
	})
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// It gets a copy of every datagram that comes to the host; it wants none.
	err = errors.Join(makeTransparent(r.fd), unix.SetsockoptSockFprog(r.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, nothing()))
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

// checksum is that of UDP.
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
