//go:build !windows

package hns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/testing/simhns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// direct is a library that calls the service in this process.
type direct struct {
	service *simhns.Service
	notify  func(code uint32)
	down    atomic.Bool

	mu            sync.Mutex
	made          uintptr
	registrations map[uintptr]func()
}

func (m *machine) open(t *testing.T) {
	t.Helper()
	var l *direct
	c, err := newClient(func(notify func(uint32)) (library, error) {
		l = &direct{service: m.service, notify: notify, registrations: map[uintptr]func(){}}
		return l, nil
	})
	testenv.NoError(t, err)
	m.Client = c
	m.setDown = func(down bool) {
		l.down.Store(down)
		if down {
			l.disconnect()
		}
	}
}

// disconnect ends all registrations, which the service tells.
func (l *direct) disconnect() {
	l.mu.Lock()
	var any bool
	for id, cancel := range l.registrations {
		cancel()
		l.registrations[id] = func() {}
		any = true
	}
	l.mu.Unlock()
	if any {
		l.notify(0x01000000)
	}
}

func (l *direct) do(q simhns.Call) (simhns.Reply, error) {
	if l.down.Load() {
		return simhns.Reply{}, outcome(q.Function, hcn.CodeRPCUnavailable, "")
	}
	r := l.service.Call(q)
	return r, outcome(q.Function, r.Code, r.Record)
}

func (l *direct) call(c *call) error {
	q := simhns.Call{Function: c.function, Handle: uint64(c.handle), Text: c.text}
	if g := c.id; g != nil {
		le := binary.LittleEndian
		q.ID = fmt.Sprintf("%08x-%04x-%04x-%x-%x", le.Uint32(g[0:]), le.Uint16(g[4:]), le.Uint16(g[6:]), g[8:10], g[10:])
	}
	r, err := l.do(q)
	if c.opened != nil {
		*c.opened = uintptr(r.Handle)
	}
	if c.result != nil {
		*c.result = r.Text
	}
	return err
}

func (l *direct) get(path string) (string, error) {
	r, err := l.do(simhns.Call{Function: "HNSCall GET " + path})
	return r.Text, err
}

func (l *direct) register() (uintptr, error) {
	if l.down.Load() {
		return 0, outcome("HcnRegisterServiceCallback", hcn.CodeRPCUnavailable, "")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	l.registrations[l.made] = l.service.Subscribe(l.notify)
	return l.made, nil
}

func (l *direct) unregister(registration uintptr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	cancel, ok := l.registrations[registration]
	if !ok {
		return errors.New("no such registration")
	}
	cancel()
	delete(l.registrations, registration)
	return nil
}

func TestOnlyOnWindows(t *testing.T) {
	if c, err := Open(); c != nil || !errors.Is(err, hcn.ErrUnsupported) {
		t.Errorf("Open: got %v, %v, want %v", c, err, hcn.ErrUnsupported)
	}
}

func ExampleOpen() {
	_, err := Open()
	fmt.Println(errors.Is(err, hcn.ErrUnsupported))
	// Output: true
}
