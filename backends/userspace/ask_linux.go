package userspace

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// asker puts questions to the kernel by netlink, of which each has one answer.
type asker struct {
	mu     sync.Mutex
	fd     int // -1 when closed
	seq    uint32
	answer [4096]byte
}

func (s *sockets) asker(protocol int) (a *asker, err error) {
	a = &asker{fd: -1}
	err = s.do(func() error {
		a.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err == nil {
		// The answer is there when the question has been put.
		err = unix.SetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	}
	return a, err
}

// Close closes the socket.
func (a *asker) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	fd := a.fd
	if a.fd = -1; fd < 0 {
		return net.ErrClosed
	}
	return unix.Close(fd)
}

// ask puts a question, and has the answer read, which is valid until read returns.
func (a *asker) ask(request *nl.NetlinkRequest, read func(answer []byte) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd < 0 {
		return net.ErrClosed
	}
	a.seq++
	request.Seq = a.seq
	if err := unix.Sendto(a.fd, request.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, _, err := unix.Recvfrom(a.fd, a.answer[:], 0)
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(a.answer[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch {
			case m.Header.Seq != a.seq: // late
			case m.Header.Type == unix.NLMSG_ERROR:
				return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
			default:
				return read(m.Data)
			}
		}
	}
}

// route says how packets to an address leave: the kind of the route (unix.RTN_LOCAL and
// so on) and the number of the interface, that of the loopback interface for the node's
// own addresses. Both are 0 if there is no route.
func (s *sockets) route(to netip.Addr) (kind uint8, link int) {
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	about := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: uint8(to.BitLen())}}
	if to.Is6() {
		about.Family = unix.AF_INET6
	}
	request.AddData(about)
	request.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	err := s.routes.ask(request, func(answer []byte) error {
		if len(answer) < unix.SizeofRtMsg {
			return unix.EBADMSG
		}
		b, err := attribute(answer[unix.SizeofRtMsg:], unix.RTA_OIF)
		if len(b) == 4 {
			link = int(binary.NativeEndian.Uint32(b))
		}
		kind = nl.DeserializeRtMsg(answer).Type
		return err
	})
	if err != nil {
		return 0, 0
	}
	return kind, link
}

// link implements [engine.Hooks].Link.
func (s *sockets) link(to netip.Addr) int {
	_, link := s.route(to)
	return link
}

// isLocal reports whether an address is one of the node's own.
func (s *sockets) isLocal(a netip.Addr) bool {
	kind, _ := s.route(a)
	return kind == unix.RTN_LOCAL
}

// attribute finds an attribute among others; none is no error.
func attribute(b []byte, kind uint16) ([]byte, error) {
	all, err := nl.ParseRouteAttr(b)
	for i := range all {
		if all[i].Attr.Type&nl.NLA_TYPE_MASK == kind {
			return all[i].Value, nil
		}
	}
	return nil, err
}
