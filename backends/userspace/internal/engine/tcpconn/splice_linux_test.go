package tcpconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// Splice moves data while more keeps arriving, and then returns, so that a silent
// connection holds no pipe.
func TestSplice(t *testing.T) {
	t.Parallel()
	source, from := connPair(t)
	to, sink := connPair(t)
	moved := 0
	splice := func() error { return from.Splice(to, func(_ net.Conn, n int) { moved += n }) }
	want := bytes.Repeat([]byte("0123456789"), 1000)
	if _, err := source.Write(want); err != nil {
		t.Fatal(err)
	}
	if err := splice(); err != nil {
		t.Fatalf("when no more data arrives: got error %v, want none", err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(sink, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes and error %v, want the sent bytes", len(got), err)
	}
	if moved != len(want) {
		t.Errorf("used got %d bytes, want %d", moved, len(want))
	}
	sent := make(chan struct{})
	time.AfterFunc(2*pause, func() {
		defer close(sent)
		_, _ = source.Write([]byte("x"))
		_ = source.CloseWrite()
	})
	if _, err := from.Read(make([]byte, 1)); err != nil {
		t.Errorf("reading after Splice: got error %v, want the next byte", err)
	}
	<-sent // otherwise the end of the data may arrive after more than a pause
	if err := splice(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: got error %v, want %v", err, io.EOF)
	}
	moved = 0
	if err := from.Splice(&net.TCPConn{}, func(net.Conn, int) { moved++ }); err != nil || moved != 0 {
		t.Errorf("to a connection of package net: got %d moves and error %v, want neither", moved, err)
	}
}
