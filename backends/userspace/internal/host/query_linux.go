package host

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// Query sends netlink requests to the kernel, each of which has one answer.
type Query struct {
	mu     sync.Mutex
	socket *rawnetlink.Socket
	seq    uint32
}

// Query opens a socket of a netlink protocol, such as unix.NETLINK_ROUTE.
func (s *Sockets) Query(protocol int) (*Query, error) {
	q := &Query{}
	err := s.Do(func() (err error) {
		// The kernel answers before the request returns.
		q.socket, err = rawnetlink.OpenSocket(protocol, rawnetlink.Buffers{Send: 64 << 10, Receive: 64 << 10}, time.Second)
		return err
	})
	return q, err
}

// Close closes the socket. Requests after it fail.
func (q *Query) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.socket.Close()
}

// Do sends a request. The answer is valid until read returns.
func (q *Query) Do(request *nl.NetlinkRequest, read func(answer []byte) error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seq++
	request.Seq = q.seq
	if err := q.socket.Send(request.Serialize()); err != nil {
		return err
	}
	for {
		messages, err := q.socket.Receive(0)
		if err != nil {
			return err
		}
		for m, ok := messages.Next(); ok; m, ok = messages.Next() {
			switch {
			case m.Seq != q.seq: // the answer to an earlier request
			case m.Type == unix.NLMSG_ERROR:
				refused, err := m.Outcome()
				return cmp.Or[error](err, refused.Errno)
			default:
				return read(m.Payload)
			}
		}
	}
}

// route returns the kind of the route to an address (unix.RTN_LOCAL and so on), and the number
// of the interface by which packets leave, that of the loopback interface for the node's own
// addresses. Both are 0 if there is no route.
func (s *Sockets) route(to netip.Addr) (kind uint8, link int) {
	family := uint8(unix.AF_INET6)
	if to.Is4() {
		family = unix.AF_INET
	}
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	request.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Dst_len: uint8(to.BitLen())}})
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

// IsLocal reports whether an address is one of the node's own.
func (s *Sockets) IsLocal(a netip.Addr) bool {
	kind, _ := s.route(a)
	return kind == unix.RTN_LOCAL
}

// Link returns the number of the interface by which packets to an address leave, 0 if there
// is no route.
func (s *Sockets) Link(to netip.Addr) int {
	_, link := s.route(to)
	return link
}
