package backendtest

import (
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
)

// flow is one connection of a probe: for TCP what is meant by that, for UDP and
// ICMP a socket of its own. Whoever keeps it open can ask again later, and so
// see what becomes of established connections.
//
// The socket is not one of package net, which neither connects without waiting
// nor gets at the kernel's queue of ICMP errors. That queue is needed: a refusal
// that comes back while the socket is still busy sending, as it does on the node
// itself, reaches the socket nowhere else.
type flow struct {
	fd       int
	protocol v1.Protocol
	is4      bool
	patience time.Duration
	// asked counts questions. The greeting of a TCP server is the answer to
	// number 0, which nobody puts.
	asked uint16
	// connect is what connecting the socket gave at once.
	connect error
	unread  []byte // TCP: the beginning of a line
}

// open makes the connections of a probe, without waiting for any answer.
// Whoever opens flows closes them.
func (b *testbed) open(p *probe) ([]*flow, error) {
	h := b.host(p.from)
	if h == nil {
		return nil, fmt.Errorf("the testbed has no place %q", p.from)
	}
	var flows []*flow
	err := h.ns.Do(func() error {
		for range max(p.tries, 1) {
			f, err := openFlow(p)
			if err != nil {
				return err
			}
			flows = append(flows, f)
		}
		return nil
	})
	if err != nil {
		for _, f := range flows {
			f.Close()
		}
		return nil, err
	}
	return flows, nil
}

// openFlow makes a flow in the namespace of the thread.
func openFlow(p *probe) (*flow, error) {
	f := &flow{protocol: p.protocol, is4: p.to.Addr().Is4(), patience: p.wait()}
	if err := f.socket(); err != nil {
		return nil, err
	}
	if p.source.IsValid() {
		if err := unix.Bind(f.fd, sockaddr(p.source)); err != nil {
			f.Close()
			return nil, fmt.Errorf("binding to %v: %w", p.source, err)
		}
	}
	to := p.to
	if f.protocol == icmp {
		to = netip.AddrPortFrom(to.Addr(), 0)
	}
	if err := unix.Connect(f.fd, sockaddr(to)); !errors.Is(err, unix.EINPROGRESS) {
		f.connect = err
	}
	return f, nil
}

// socket makes a socket that collects ICMP errors.
func (f *flow) socket() (err error) {
	family, level, option, echo := unix.AF_INET, unix.SOL_IP, unix.IP_RECVERR, unix.IPPROTO_ICMP
	if !f.is4 {
		family, level, option, echo = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_RECVERR, unix.IPPROTO_ICMPV6
	}
	kind, protocol := unix.SOCK_DGRAM, 0
	switch f.protocol {
	case v1.ProtocolTCP:
		kind = unix.SOCK_STREAM
	case icmp:
		protocol = echo
	case v1.ProtocolUDP:
	default:
		return fmt.Errorf("probes know no protocol %q", f.protocol)
	}
	f.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fmt.Errorf("making a socket for %s: %w", f.protocol, err)
	}
	err = unix.SetsockoptInt(f.fd, level, option, 1)
	if err == nil && f.protocol == v1.ProtocolTCP {
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

// Close ends the flow.
func (f *flow) Close() { _ = unix.Close(f.fd) }

// ask puts a question to the other end, and waits for its answer. The first
// question to a TCP server is to connect to it.
func (f *flow) ask() reply { return askAll([]*flow{f})[0] }

// askAll puts a question to the other end of each flow, and waits for the answers
// as long as the first flow has patience.
func askAll(flows []*flow) []reply {
	replies := make([]reply, len(flows))
	pending := map[int]*flow{}
	for i, f := range flows {
		if err := f.send(); err != nil {
			replies[i] = verdictOf(err)
		} else {
			pending[i] = f
		}
	}
	err := receiveAll(pending, time.Now().Add(flows[0].patience), func(i int, r reply) { replies[i] = r })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return replies // Who has not answered is silent.
	}
	for i := range pending {
		replies[i] = verdictOf(err)
	}
	return replies
}

// receiveAll takes answers, and the flows that got them out of the pending ones,
// until there are no more or the time is up. The sockets are watched through an
// epoll descriptor, which the runtime can wait for: it takes sockets that have
// nothing but errors for unusable. Waiting in a system call would occupy a
// thread for each probe, and on a busy machine keep the servers from running.
func receiveAll(pending map[int]*flow, end time.Time, take func(int, reply)) error {
	events, err := watch(pending)
	if err != nil {
		return err
	}
	defer func() { _ = events.Close() }()
	if err := events.SetReadDeadline(end); err != nil {
		return err
	}
	raw, err := events.SyscallConn()
	if err != nil {
		return err
	}
	ready := make([]unix.EpollEvent, len(pending)+1)
	return raw.Read(func(fd uintptr) bool {
		n, err := unix.EpollWait(int(fd), ready, 0)
		if err != nil {
			return false // It was interrupted.
		}
		for _, e := range ready[:n] {
			f := pending[int(e.Fd)]
			if f == nil {
				continue // It has its answer, and more to say.
			}
			if r, done := f.receive(); done {
				take(int(e.Fd), r)
				delete(pending, int(e.Fd))
			}
		}
		return len(pending) == 0
	})
}

// watch makes an epoll descriptor that tells which flows, by number, have
// received something.
func watch(flows map[int]*flow) (*os.File, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("waiting for answers: %w", err)
	}
	// That it does not block makes the runtime wait for it.
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

// send puts the next question.
func (f *flow) send() error {
	if f.connect != nil {
		return f.connect
	}
	number := f.asked
	f.asked++
	if f.protocol == v1.ProtocolTCP && number == 0 {
		return nil
	}
	_, err := unix.Write(f.fd, f.question(number))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ECONNREFUSED) {
		// EPERM is what the node itself does not let out. Whether that was
		// refused or dropped, the queue of errors tells.
		return nil
	}
	return err
}

func (f *flow) question(number uint16) []byte {
	if f.protocol != icmp {
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

// receive takes what has come, and reports whether it is the answer to the last
// question.
func (f *flow) receive() (r reply, done bool) {
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
			return reply{}, false
		case err != nil:
			// What explains the error may have come after the look at the
			// queue.
			if r, ok := f.icmpError(); ok {
				return r, true
			}
			return verdictOf(err), true
		case n == 0 && f.protocol == v1.ProtocolTCP:
			return reply{outcome: failed, err: errors.New("closed without an answer")}, true
		}
		if r, ok := f.read(buf[:n], f.asked-1); ok {
			return r, true
		}
	}
}

// read looks for the answer to a question in what was received.
func (f *flow) read(received []byte, number uint16) (reply, bool) {
	if f.protocol == icmp {
		isAnswer := len(received) >= 8 && binary.BigEndian.Uint16(received[6:]) == number
		return reply{outcome: answered}, isAnswer
	}
	f.unread = append(f.unread, received...)
	for {
		line, rest, complete := strings.Cut(string(f.unread), "\n")
		if !complete {
			return reply{}, false
		}
		f.unread = []byte(rest)
		a, err := parseAnswer(line)
		if err != nil {
			return reply{outcome: failed, err: err}, true
		}
		if a.question == strconv.Itoa(int(number)) {
			return reply{outcome: answered, by: a.name, client: a.client, own: a.own}, true
		}
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
