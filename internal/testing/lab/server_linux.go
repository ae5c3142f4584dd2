package lab

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

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// Server answers on one port, TCP and UDP, in both families. A TCP client gets a
// greeting first. An answer is a line of four words: the question, however long (0 for
// the greeting), the name of the server, the address at which it sees the client,
// and its own address that the client used.
type Server struct {
	name     string
	listener net.Listener
	packets  *netns.UDPServer // nil for a server of connections alone
	work     sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	err    error // what ended the server too early
}

// idleTime is after how long a server closes a connection without questions: its end may
// have been lost.
const idleTime = 10 * time.Minute

// maxLine is the maximum length of a question by TCP, in bytes.
const maxLine = 1 << 20

func serve(ctx context.Context, ns *netns.NS, name string, port uint16) (*Server, error) {
	listener, err := ns.Listen(ctx, "tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		return nil, err
	}
	packets, err := ns.ListenUDP(ctx, port)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s := ServeOn(listener, name)
	s.packets = packets
	s.work.Go(func() {
		packets.Serve(func(question []byte, client, own netip.AddrPort) []byte {
			return s.answer(string(bytes.TrimSpace(question)), client, own)
		})
	})
	return s, nil
}

// ServeOn starts a server for the connections of a listener, such as one of SCTP.
func ServeOn(listener net.Listener, name string) *Server {
	s := &Server{name: name, listener: listener, conns: map[net.Conn]struct{}{}}
	s.work.Go(s.serveTCP)
	return s
}

// Close ends the server and all its connections. It can be called more than once.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	errs := []error{s.listener.Close()}
	if s.packets != nil {
		errs = append(errs, s.packets.Close())
	}
	for c := range s.conns {
		// The handler of the connection closes it too.
		_ = c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
	return errors.Join(append(errs, s.err)...)
}

func (s *Server) answer(question string, client, own netip.AddrPort) []byte {
	return fmt.Appendf(nil, "%s %s %v %v\n", question, s.name, ipaddr.Unmap(client), ipaddr.Unmap(own))
}

// Answer is the answer of a server.
type Answer struct {
	// Question is what the client has sent; 0 in a greeting.
	Question string
	// Name is the name of the server.
	Name string
	// Client is the address at which the server sees the client, and Own the address of the server that
	// the client used, as the server sees it.
	Client, Own netip.AddrPort
}

// ParseAnswer parses the line of an answer.
func ParseAnswer(line string) (Answer, error) {
	words := strings.Fields(line)
	if len(words) != 4 {
		return Answer{}, fmt.Errorf("answer %q: want four words", line)
	}
	client, err := netip.ParseAddrPort(words[2])
	if err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	own, err := netip.ParseAddrPort(words[3])
	if err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	return Answer{Question: words[0], Name: words[1], Client: client, Own: own}, nil
}

func (s *Server) serveTCP() {
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
		if s.register(conn) {
			s.work.Go(func() { s.serveConn(conn) })
		}
	}
}

func (s *Server) register(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return false
	}
	s.conns[conn] = struct{}{}
	return true
}

// serveConn sends a greeting to a client and answers its questions until it closes.
func (s *Server) serveConn(conn net.Conn) {
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

func addrPort(a net.Addr) (netip.AddrPort, error) { return netip.ParseAddrPort(a.String()) }
