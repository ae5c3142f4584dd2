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

// ask puts a question, and has the attributes of the answer read, which come after a
// head of that size. They are valid until read returns.
func (a *asker) ask(request *nl.NetlinkRequest, head int, read func(body []byte) error) error {
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
				return read(m.Data[min(head, len(m.Data)):])
			}
		}
	}
}

// link gives the number of the interface by which packets to an address leave, that
// of the loopback interface for the node's own addresses; 0 if there is none.
func (s *sockets) link(to netip.Addr) (number int) {
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	about := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Dst_len: uint8(to.BitLen())}}
	if to.Is6() {
		about.Family = unix.AF_INET6
	}
	request.AddData(about)
	request.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	err := s.routes.ask(request, unix.SizeofRtMsg, func(body []byte) error {
		b, err := attribute(body, unix.RTA_OIF)
		if len(b) == 4 {
			number = int(binary.NativeEndian.Uint32(b))
		}
		return err
	})
	if err != nil {
		return 0
	}
	return number
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
