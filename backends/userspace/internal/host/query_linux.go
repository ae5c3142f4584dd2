package host

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Query sends netlink requests to the kernel, each of which has one answer.
type Query struct {
	mu     sync.Mutex
	fd     int // -1 when closed
	seq    uint32
	answer [4096]byte
}

// Query opens a socket of a netlink protocol, such as unix.NETLINK_ROUTE.
func (s *Sockets) Query(protocol int) (q *Query, err error) {
	q = &Query{fd: -1}
	err = s.Do(func() error {
		q.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err == nil {
		// The kernel answers before the request returns.
		err = unix.SetsockoptTimeval(q.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	}
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

// Close closes the socket.
func (q *Query) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	fd := q.fd
	if q.fd = -1; fd < 0 {
		return net.ErrClosed
	}
	return unix.Close(fd)
}

// Do sends a request. The answer is valid until read returns.
func (q *Query) Do(request *nl.NetlinkRequest, read func(answer []byte) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fd < 0 {
		return net.ErrClosed
	}
	q.seq++
	request.Seq = q.seq
	if err := unix.Sendto(q.fd, request.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, _, err := unix.Recvfrom(q.fd, q.answer[:], 0)
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(q.answer[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch {
			case m.Header.Seq != q.seq: // the answer to an earlier request
			case m.Header.Type == unix.NLMSG_ERROR:
				return unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
			default:
				return read(m.Data)
			}
		}
	}
}

// route returns the kind of the route to an address (unix.RTN_LOCAL and so on), and the number
// of the interface by which packets leave, that of the loopback interface for the node's own
// addresses. Both are 0 if there is no route.
func (s *Sockets) route(to netip.Addr) (kind uint8, link int) {
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	request.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(SocketFamily(ipaddr.FamilyOf(to))), Dst_len: uint8(to.BitLen())}})
	request.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	err := s.routes.Do(request, func(answer []byte) error {
		if len(answer) < unix.SizeofRtMsg {
			return unix.EBADMSG
		}
		if b := rawnetlink.Attrs(answer[unix.SizeofRtMsg:]).Find(unix.RTA_OIF); len(b) == 4 {
			link = int(binary.NativeEndian.Uint32(b))
		}
		kind = nl.DeserializeRtMsg(answer).Type
		return nil
	})
	if err != nil {
		return 0, 0
	}
	return kind, link
}

// Link returns the number of the interface by which packets to an address leave, 0 if there
// is no route.
func (s *Sockets) Link(to netip.Addr) int {
	_, link := s.route(to)
	return link
}
