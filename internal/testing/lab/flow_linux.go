package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
)

// ICMP makes a flow send echo requests. Their answers have no name of a server.
const ICMP v1.Protocol = "ICMP"

// Flow is a connection to a [Server] that is made and asked without blocking a thread: by TCP or SCTP, or a
// socket of its own for UDP and ICMP. An open flow can send further questions later, which shows what happens to
// established connections.
//
// The socket is not one of package net, which neither connects without waiting nor
// reads the kernel's queue of ICMP errors. That queue is needed: an ICMP error that
// arrives while the socket is still sending, as on the node itself, is only there.
type Flow struct {
	// Patience is how long to wait for an answer.
	Patience time.Duration

	fd       int
	protocol v1.Protocol
	is4      bool
	// asked counts questions. The greeting of a TCP server is the answer to
	// number 0, which is not sent.
	asked uint16
	// connect is the error that connect returned at once.
	connect error
	unread  []byte // TCP: the start of a line
}

// OpenFlow makes a flow in the namespace of the thread, without waiting for any answer. It takes a port from next
// if the source has none; if the source has no address either, the kernel chooses that.
func OpenFlow(protocol v1.Protocol, source, to netip.AddrPort, next func() uint16) (*Flow, error) {
	f := &Flow{Patience: patience, protocol: protocol, is4: to.Addr().Is4()}
	if err := f.socket(); err != nil {
		return nil, err
	}
	if err := f.bind(source, ipaddr.FamilyOf(to.Addr()), next); err != nil {
		f.Close()
		return nil, err
	}
	if f.protocol == ICMP {
		to = netip.AddrPortFrom(to.Addr(), 0)
	}
	if err := unix.Connect(f.fd, sockaddr(to)); !errors.Is(err, unix.EINPROGRESS) {
		f.connect = err
	}
	return f, nil
}

// bind gives a flow its source. A port of next that another program uses is not taken.
func (f *Flow) bind(source netip.AddrPort, family v1.IPFamily, next func() uint16) error {
	a := source.Addr()
	if !a.IsValid() {
		a = ipaddr.Unspecified(family)
	}
	if f.protocol == ICMP || source.Port() != 0 {
		next = source.Port // of an echo request, the kernel chooses the identifier
	}
	var err error
	for range 100 {
		at := netip.AddrPortFrom(a, next())
		if err = unix.Bind(f.fd, sockaddr(at)); err == nil {
			return nil
		}
		err = fmt.Errorf("binding to %v: %w", at, err)
		if !errors.Is(err, unix.EADDRINUSE) || at.Port() == source.Port() {
			break
		}
	}
	return err
}

// socket makes a socket that collects ICMP errors.
func (f *Flow) socket() (err error) {
	family, level, option, echo := unix.AF_INET, unix.SOL_IP, unix.IP_RECVERR, unix.IPPROTO_ICMP
	if !f.is4 {
		family, level, option, echo = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_RECVERR, unix.IPPROTO_ICMPV6
	}
	kind, protocol := unix.SOCK_DGRAM, 0
	switch f.protocol {
	case v1.ProtocolTCP:
		kind = unix.SOCK_STREAM
	case v1.ProtocolSCTP:
		kind, protocol = unix.SOCK_STREAM, unix.IPPROTO_SCTP
	case ICMP:
		protocol = echo
	case v1.ProtocolUDP:
	default:
		return fmt.Errorf("flow: unknown protocol %q", f.protocol)
	}
	f.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fmt.Errorf("making a socket for %s: %w", f.protocol, err)
	}
	err = unix.SetsockoptInt(f.fd, level, option, 1)
	if err == nil && f.isConnection() {
		// Closing by reset leaves nothing behind, neither in the server's
		// namespace nor on the node.
		err = unix.SetsockoptLinger(f.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	if err != nil {
		f.Close()
		return fmt.Errorf("setting up a socket for %s: %w", f.protocol, err)
	}
	return nil
}

// isConnection reports whether the flow has a connection, in which the server begins.
func (f *Flow) isConnection() bool {
	return f.protocol == v1.ProtocolTCP || f.protocol == v1.ProtocolSCTP
}

// Source returns the address and port that the flow sends from.
func (f *Flow) Source() netip.AddrPort {
	switch a, _ := unix.Getsockname(f.fd); a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{} // The flow is closed.
}

// Close ends the flow.
func (f *Flow) Close() { _ = unix.Close(f.fd) }

// Ask sends a question to the server, and waits for its answer until ctx ends. The first question to a
// TCP server is the connection itself.
func (f *Flow) Ask(ctx context.Context) Reply { return AskAll(ctx, []*Flow{f})[0] }

// AskAll sends a question on each flow, and waits for the answers for the patience of the
// first flow, and at most until ctx ends.
func AskAll(ctx context.Context, flows []*Flow) []Reply {
	replies := make([]Reply, len(flows))
	pending := map[int]*Flow{}
	for i, f := range flows {
		if err := f.Send(); err != nil {
			replies[i] = verdictOf(err)
		} else {
			pending[i] = f
		}
	}
	err := ReceiveAll(ctx, pending, time.Now().Add(flows[0].Patience), func(i int, r Reply) { replies[i] = r })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return replies // Flows without answer have the zero Reply, Silence.
	}
	for i := range pending {
		replies[i] = verdictOf(err)
	}
	return replies
}

// ReceiveAll calls take with each answer, and removes its flow from pending, until none is
// pending, the time is over or ctx ends. It watches the sockets by an epoll descriptor, on which the
// runtime can wait: the runtime treats sockets that have only errors as unusable. Waiting in
// a system call would need a thread for each flow, and on a busy machine keep the servers
// from running.
func ReceiveAll(ctx context.Context, pending map[int]*Flow, end time.Time, take func(int, Reply)) error {
	events, err := watch(pending)
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }()
	if err := events.SetReadDeadline(end); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Now()) })() // It fails if events is closed.
	raw, err := events.SyscallConn()
	if err != nil {
		return err
	}
	ready := make([]unix.EpollEvent, len(pending)+1)
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.EpollWait(int(fd), ready, 0)
		if err != nil {
			return false // interrupted
		}
		for _, e := range ready[:n] {
			f := pending[int(e.Fd)]
			if f == nil {
				continue // It has its answer already, and received more.
			}
			if r, done := f.receive(); done {
				take(int(e.Fd), r)
				delete(pending, int(e.Fd))
			}
		}
		return len(pending) == 0
	})
}

// watch makes an epoll descriptor that reports the numbers of flows that have received
// something.
func watch(flows map[int]*Flow) (*os.File, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("waiting for answers: %w", err)
	}
	// The runtime waits only for non-blocking descriptors.
	err = unix.SetNonblock(fd, true)
	for i, f := range flows {
		if err == nil {
			err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, f.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)})
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for answers: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "answers"), nil
}

// Send sends the next question.
func (f *Flow) Send() error {
	if f.connect != nil {
		return f.connect
	}
	number := f.asked
	f.asked++
	if f.isConnection() && number == 0 {
		return nil
	}
	_, err := unix.Write(f.fd, f.question(number))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ECONNREFUSED) {
		// EPERM means that the node itself does not send the packet. The error
		// queue shows whether it was refused or dropped.
		return nil
	}
	return err
}

func (f *Flow) question(number uint16) []byte {
	if f.protocol != ICMP {
		return fmt.Appendf(nil, "%d\n", number)
	}
	request := make([]byte, 8) // type, code, checksum, identifier, number
	request[0] = 128
	if f.is4 {
		request[0] = 8
	}
	binary.BigEndian.PutUint16(request[6:], number)
	return request
}

// receive reads what has arrived, and reports whether it is the answer to the last
// question.
func (f *Flow) receive() (r Reply, done bool) {
	for {
		if r, ok := f.icmpError(); ok {
			return r, true
		}
		buf := make([]byte, 256)
		n, err := unix.Read(f.fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return Reply{}, false
		case err != nil:
			// The ICMP error may have arrived after the queue was read.
			if r, ok := f.icmpError(); ok {
				return r, true
			}
			return verdictOf(err), true
		case n == 0 && f.isConnection():
			return Reply{Outcome: Failed, Err: errors.New("closed without an answer")}, true
		}
		if r, ok := f.read(buf[:n], f.asked-1); ok {
			return r, true
		}
	}
}

// read searches the received data for the answer to a question.
func (f *Flow) read(received []byte, number uint16) (Reply, bool) {
	if f.protocol == ICMP {
		isAnswer := len(received) >= 8 && binary.BigEndian.Uint16(received[6:]) == number
		return Reply{Outcome: Answered}, isAnswer
	}
	f.unread = append(f.unread, received...)
	for {
		line, rest, complete := strings.Cut(string(f.unread), "\n")
		if !complete {
			return Reply{}, false
		}
		f.unread = []byte(rest)
		a, err := ParseAnswer(line)
		if err != nil {
			return Reply{Outcome: Failed, Err: err}, true
		}
		if a.Question == strconv.Itoa(int(number)) {
			return Reply{Outcome: Answered, Answer: a}, true
		}
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
