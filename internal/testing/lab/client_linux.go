package lab

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// patience is how long connecting, or an answer, may take: more than a busy machine needs.
const patience = 20 * time.Second

// Conn is a connection to a [Server], or a flow of UDP.
type Conn struct {
	net.Conn

	lines *bufio.Reader
	asked int
}

// NewConn returns a connection that asks a server.
func NewConn(c net.Conn) *Conn { return &Conn{Conn: c, lines: bufio.NewReader(c)} }

// Dial connects from a host, by tcp, udp or sctp, to an address with a port, within 20 seconds.
func Dial(ctx context.Context, from *netns.NS, network, to string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var c net.Conn
	var err error
	if network == "sctp" {
		var at netip.AddrPort
		if at, err = netip.ParseAddrPort(to); err == nil {
			c, err = from.DialSCTP(ctx, at)
		}
	} else {
		c, err = from.Dial(ctx, network, to)
	}
	if err != nil {
		return nil, err
	}
	return NewConn(c), nil
}

// Ask sends a question, and waits for its answer until ctx ends, but no longer than 20 seconds.
func (c *Conn) Ask(ctx context.Context) (Answer, error) {
	end := time.Now().Add(patience)
	if at, ok := ctx.Deadline(); ok && at.Before(end) {
		end = at
	}
	if err := c.SetDeadline(end); err != nil {
		return Answer{}, err
	}
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })() // It fails if c is closed.
	c.asked++
	question := strconv.Itoa(c.asked)
	if _, err := io.WriteString(c, question+"\n"); err != nil {
		return Answer{}, err
	}
	for { // The greeting and answers to earlier questions come first.
		line, err := c.lines.ReadString('\n')
		if err != nil {
			return Answer{}, err
		}
		if a, err := ParseAnswer(line); err != nil || a.Question == question {
			return a, err
		}
	}
}

// Close ends a TCP connection by a reset, which leaves no state in the kernel.
func (c *Conn) Close() error {
	var err error
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		err = tcp.SetLinger(0)
	}
	return errors.Join(err, c.Conn.Close())
}

// Ask connects, and asks once. An error says whether the packets were refused or lost, as an error of
// [net.Dial] does.
func Ask(ctx context.Context, from *netns.NS, network, to string) (a Answer, err error) {
	c, err := Dial(ctx, from, network, to)
	if err != nil {
		return Answer{}, err
	}
	a, err = c.Ask(ctx)
	return a, errors.Join(err, c.Close())
}
