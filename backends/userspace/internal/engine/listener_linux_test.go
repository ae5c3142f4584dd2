package engine

import (
	"errors"
	"net"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Who has closed a listener may listen at its address, though somebody was about to
// accept.
func TestClosedListenersFreeTheirAddress(t *testing.T) {
	w := newWorld(t, Config{}, v1.ProtocolTCP)
	l, ok := w.listener(t).(listener)
	if !ok || !l.use() {
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
	eventually(t, "it is about to be closed", func() bool { return l.uses.Load() >= closing })
	time.Sleep(20 * time.Millisecond) // as long as somebody is accepting
	l.unuse()
	if err := <-done; err != nil {
		t.Errorf("closing, and listening again: got error %v, want none", err)
	}
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closing again: got error %v, want %v", err, net.ErrClosed)
	}
}
