package engine

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// An endpoint that answers in time is reached although this process does not run until after the timeout, as
// on a node that is short of processor time. The kernel sends the first packet of a connection again after a
// second, which finds room in the listener's queue.
//
// The test stops its own process, so it is alone. Meanwhile other goroutines can run on all processors: an idle processor
// would wait for sockets, and look at them before it looks at timers.
func TestProcessRunsLate(t *testing.T) {
	for range 2 { // In one of many rounds, a processor was idle.
		testLateProcess(t)
	}
}

func testLateProcess(t *testing.T) {
	t.Helper()
	e, err := New(Config{})
	testenv.NoError(t, err)
	defer e.Close()
	stop, err := os.StartProcess("/bin/sh", []string{"sh", "-c", fmt.Sprintf("sleep 0.5; kill -STOP %[1]d; sleep 1.2; kill -CONT %[1]d", os.Getpid())}, &os.ProcAttr{})
	testenv.NoError(t, err)
	var over atomic.Bool
	defer over.Store(true)
	time.AfterFunc(400*time.Millisecond, func() {
		for range runtime.GOMAXPROCS(0) {
			go func() {
				for !over.Load() {
					runtime.Gosched()
				}
			}()
		}
	})
	var dials sync.WaitGroup
	for range 8 {
		to, accept := fullListener(t)
		time.AfterFunc(300*time.Millisecond, accept)
		dials.Go(func() {
			conn, err := e.reach(t.Context(), Dial{Protocol: v1.ProtocolTCP, To: to}, 1300*time.Millisecond)
			if err != nil {
				t.Errorf("reach: got error %v, want a connection", err)
				return
			}
			_ = conn.Close() // The test is over.
		})
	}
	dials.Wait()
	_, err = stop.Wait()
	testenv.NoError(t, err)
}

// An endpoint that does not answer is given up after the timeout, and the error says that it was slow.
func TestSlowEndpoint(t *testing.T) {
	t.Parallel()
	to, _ := fullListener(t)
	e, err := New(Config{})
	testenv.NoError(t, err)
	t.Cleanup(e.Close)
	var took time.Duration
	for range 20 { // On a busy machine, a timer may be late.
		begin := time.Now()
		_, err = e.reach(t.Context(), Dial{Protocol: v1.ProtocolTCP, To: to}, 100*time.Millisecond)
		if took = time.Since(begin); !errorIsSlow(err) || took < 100*time.Millisecond {
			break
		}
		if took <= 900*time.Millisecond {
			return
		}
	}
	t.Errorf("reach: got error %v after %v, want that the deadline is exceeded after 100 ms", err, took)
}

func errorIsSlow(err error) bool {
	c := candidates{}
	c.failed(nil, err)
	return len(c.slow) == 1
}

// fullListener returns the address of a listener whose queue is full: the kernel drops first packets until
// accept is called.
func fullListener(t *testing.T) (at netip.AddrPort, accept func()) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Close(fd) })
	testenv.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	testenv.NoError(t, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	testenv.NoError(t, err)
	bound, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		t.Fatalf("address: got %T, want one of IPv4", name)
	}
	at = netip.AddrPortFrom(netip.AddrFrom4(bound.Addr), uint16(bound.Port)) //nolint:gosec // a port
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", at.String())
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return at, func() {
		if accepted, _, err := syscall.Accept(fd); err == nil {
			_ = syscall.Close(accepted)
		}
	}
}
