package backendtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/netns"
)

// server answers on one port, TCP and UDP, in both families. To a TCP client it
// speaks first. An answer is a line of four words: the question, however long (0 for
// the greeting), the name of the server, the address that it sees the client at,
// and its own address that the client reached.
type server struct {
	name     string
	listener net.Listener
	packets  *net.UDPConn
	work     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	err    error // what ended the server too early
}

// idleTime is when a server gives up a connection, whose end may have been lost
// on the way.
const idleTime = 10 * time.Minute

// Questions are at most so long: a line of TCP, and a datagram.
const maxLine, maxDatagram = 1 << 20, 1 << 14

func startServer(ctx context.Context, ns *netns.NS, name string, port uint16) (*server, error) {
	address := fmt.Sprintf("[::]:%d", port)
	listener, err := ns.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	packets, err := listenPackets(ctx, ns, address)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s := &server{name: name, listener: listener, packets: packets, conns: map[net.Conn]struct{}{}}
	s.work.Go(s.serveTCP)
	s.work.Go(func() { s.serveUDP(port) })
	return s, nil
}

// Close ends the server and all its connections.
func (s *server) Close() error {
	errs := []error{s.listener.Close(), s.packets.Close()}
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		// The handler of the connection closes it too.
		_ = c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
	return errors.Join(append(errs, s.err)...)
}

func (s *server) answer(question string, client, own netip.AddrPort) []byte {
	return fmt.Appendf(nil, "%s %s %v %v\n", question, s.name, unmapped(client), unmapped(own))
}

// answer is what a server said.
type answer struct {
	question, name string
	client, own    netip.AddrPort
}

func parseAnswer(line string) (answer, error) {
	words := strings.Fields(line)
	if len(words) != 4 {
		return answer{}, fmt.Errorf("an answer has four words, not %q", line)
	}
	client, err := netip.ParseAddrPort(words[2])
	if err != nil {
		return answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	own, err := netip.ParseAddrPort(words[3])
	if err != nil {
		return answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	return answer{question: words[0], name: words[1], client: client, own: own}, nil
}

func (s *server) serveTCP() {
	for {
		conn, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.mu.Lock()
			s.err = fmt.Errorf("server %s: %w", s.name, err)
			s.mu.Unlock()
			return
		}
		if s.enter(conn) {
			s.work.Go(func() { s.converse(conn) })
		}
	}
}

func (s *server) enter(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return false
	}
	s.conns[conn] = struct{}{}
	return true
}

// converse greets a client and answers its questions until it goes.
func (s *server) converse(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
	}()
	client, err := addrPort(conn.RemoteAddr())
	if err != nil {
		return
	}
	own, err := addrPort(conn.LocalAddr())
	if err != nil {
		return
	}
	questions := bufio.NewScanner(conn)
	questions.Buffer(nil, maxLine)
	for question := "0"; ; question = questions.Text() {
		if conn.SetDeadline(time.Now().Add(idleTime)) != nil {
			return
		}
		if _, err := conn.Write(s.answer(question, client, own)); err != nil {
			return
		}
		if !questions.Scan() {
			return
		}
	}
}

func (s *server) serveUDP(port uint16) {
	buf, control := make([]byte, maxDatagram), make([]byte, 256)
	for {
		// What goes wrong with one client, that client notices.
		if err := s.answerPacket(buf, control, port); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// answerPacket answers one datagram, from the address that it was sent to.
func (s *server) answerPacket(buf, control []byte, port uint16) error {
	n, m, _, client, err := s.packets.ReadMsgUDPAddrPort(buf, control)
	if err != nil {
		return err
	}
	own, err := destination(control[:m])
	if err != nil {
		return err
	}
	text := s.answer(string(bytes.TrimSpace(buf[:n])), client, netip.AddrPortFrom(own, port))
	from := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: own.As16()})
	_, _, err = s.packets.WriteMsgUDPAddrPort(text, from, client)
	return err
}

// destination finds the address that a datagram was sent to. IPv4 addresses
// come, and are sent from, in IPv6 form.
func destination(control []byte) (netip.Addr, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("control messages: %w", err)
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16 {
			return netip.AddrFrom16([16]byte(m.Data)), nil
		}
	}
	return netip.Addr{}, errors.New("control messages without the address of the destination")
}

// listenPackets makes a socket for both families that tells where datagrams
// were sent to.
func listenPackets(ctx context.Context, ns *netns.NS, address string) (*net.UDPConn, error) {
	conn, err := ns.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, err
	}
	packets, ok := conn.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a UDP socket is a %T", conn), conn.Close())
	}
	raw, err := packets.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// Hundreds of probes may ask at once, while a busy machine lets the server wait: by
	// default the kernel drops what exceeds some two hundred datagrams.
	const room = 8 << 20
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1)
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
			// In a user namespace, there is less room.
			failed = errors.Join(failed, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, room))
		}
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, errors.Join(fmt.Errorf("setting up a UDP socket: %w", err), conn.Close())
	}
	return packets, nil
}

func addrPort(a net.Addr) (netip.AddrPort, error) { return netip.ParseAddrPort(a.String()) }

func unmapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
