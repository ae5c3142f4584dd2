package simhns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"unicode/utf16"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// request is what .ci/wine/computenetwork.c sends before the text of a call. Numbers have the lowest
// byte first.
type request struct {
	Function [48]byte
	Handle   uint64
	ID       [16]byte
	Text     uint64 // length in bytes, of UTF-16
}

// reply is what it receives before result and record.
type reply struct {
	Handle                     uint64
	Code, Text, Record, Unused uint32
}

// longest is the length of the longest text, in bytes.
const longest = 16 << 20

const register = "HcnRegisterServiceCallback"

// Serve answers calls until ctx ends, each by a connection of its own. A connection that registers
// for notifications gets them from then on.
func (s *Service) Serve(ctx context.Context, listener net.Listener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("simulated HNS: %w", err)
		}
		conns.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			// A program that was killed breaks off its calls.
			_ = s.answer(conn)
			_ = conn.Close()
		})
	}
}

// Start serves a client at a listener until the test ends.
func Start(t testing.TB, client hcn.Client, listener net.Listener) *Service {
	t.Helper()
	s := New(client)
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := s.Serve(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		ended.Wait()
		s.Close()
	})
	return s
}

func (s *Service) answer(conn net.Conn) error {
	var q request
	if err := binary.Read(conn, binary.LittleEndian, &q); err != nil {
		return err
	}
	if q.Text > longest {
		return errors.New("a text that is too long")
	}
	text := make([]uint16, q.Text/2)
	if err := binary.Read(conn, binary.LittleEndian, text); err != nil {
		return err
	}
	c := Call{Function: cString(q.Function[:]), Handle: q.Handle, ID: textOf(q.ID), Text: string(utf16.Decode(text))}
	if c.Function == register {
		return s.carry(conn)
	}
	return send(conn, s.Call(c))
}

func send(conn io.Writer, r Reply) error {
	text, record := utf16.Encode([]rune(r.Text)), utf16.Encode([]rune(r.Record))
	for _, part := range []any{
		reply{Handle: r.Handle, Code: r.Code, Text: uint32(2 * len(text)), Record: uint32(2 * len(record))}, text, record,
	} {
		if err := binary.Write(conn, binary.LittleEndian, part); err != nil {
			return err
		}
	}
	return nil
}

// carry writes notifications to a connection until it is closed.
func (s *Service) carry(conn net.Conn) error {
	codes := make(chan uint32)
	closed := make(chan struct{})
	defer s.Subscribe(func(code uint32) {
		select {
		case codes <- code:
		case <-closed:
		}
	})()
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, conn) // until one side closes it
	}()
	if err := send(conn, Reply{}); err != nil {
		return err
	}
	for {
		select {
		case <-closed:
			return nil
		case code := <-codes:
			if err := binary.Write(conn, binary.LittleEndian, code); err != nil {
				return err
			}
		}
	}
}

func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// textOf returns the text of a GUID, which Windows has in this form in memory.
func textOf(id [16]byte) string {
	le := binary.LittleEndian
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", le.Uint32(id[0:]), le.Uint16(id[4:]), le.Uint16(id[6:]), id[8:10], id[10:])
}
