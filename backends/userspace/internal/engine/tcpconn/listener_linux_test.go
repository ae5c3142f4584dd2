package tcpconn

import (
	"errors"
	"net"
	"testing"
	"time"
)

// When Close of a listener returns, its address is free, even if a goroutine was in Accept.
func TestClosedListenersFreeTheirAddress(t *testing.T) {
	t.Parallel()
	l := newPoller(t).listen(t)
	if !l.beginCall() {
		t.Fatal("an open listener cannot be used")
	}
	done := make(chan error, 1)
	go func() {
		err := l.Close()
		again, listening := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(l.local))
		if listening == nil {
			shut(again)
		}
		done <- errors.Join(err, listening)
	}()
	eventually(t, "Close was called", func() bool { return l.calls.Load() >= closing })
	time.Sleep(20 * time.Millisecond) // while a goroutine is accepting
	l.endCall()
	if err := <-done; err != nil {
		t.Errorf("closing and listening again: got error %v, want none", err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closing again: got error %v, want %v", err, net.ErrClosed)
	}
}
