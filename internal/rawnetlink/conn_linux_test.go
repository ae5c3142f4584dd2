package rawnetlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// openInNamespace connects to the routing of a new network namespace, which ends with the
// goroutine of the test.
func openInNamespace(t *testing.T) *Conn {
	t.Helper()
	netnstest.NeedNamespaces(t)
	runtime.LockOSThread()
	testenv.NoError(t, unix.Unshare(unix.CLONE_NEWNET))
	c, err := Open(unix.NETLINK_ROUTE)
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, c)
	return c
}

// addAddress adds the request that gives an address to the first interface, lo.
func addAddress(r *Requests, a netip.Addr) {
	b := r.Begin(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	b = append(b, unix.AF_INET, 32, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, 1)
	r.End(AppendAttr(b, unix.IFA_LOCAL, a.AsSlice()))
}

// addresses returns those that lo has.
func addresses(t *testing.T, c *Conn) map[netip.Addr]bool {
	t.Helper()
	var r Requests
	r.End(append(r.Begin(unix.RTM_GETADDR, unix.NLM_F_DUMP), make([]byte, unix.SizeofIfAddrmsg)...))
	all := map[netip.Addr]bool{}
	err := c.Ask(t.Context(), &r, func(payload []byte) error {
		a, ok := netip.AddrFromSlice(Attrs(payload[unix.SizeofIfAddrmsg:]).Find(unix.IFA_LOCAL))
		if !ok {
			return ErrMalformed
		}
		all[a] = true
		return nil
	})
	testenv.NoError(t, err)
	return all
}

// Requests of any number are carried out with few system calls, and each failure is reported
// with its index, while all other requests succeed.
func TestRequestsAreIndependent(t *testing.T) {
	for _, n := range []int{1, maxRequests - 1, maxRequests, maxRequests + 1, 5*maxRequests + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := openInNamespace(t)
			var r Requests
			a := netip.MustParseAddr("10.0.0.1")
			var want []int
			for i := range n {
				if i%7 == 3 || i > 0 && i == n-1 {
					want = append(want, i) // has the address of the one before
				} else {
					a = a.Next()
				}
				addAddress(&r, a)
			}
			failed, err := c.Do(t.Context(), &r)
			testenv.NoError(t, err)
			var got []int
			for _, f := range failed {
				if !errors.Is(&f, unix.EEXIST) {
					t.Errorf("request %d: got error %v, want EEXIST", f.Index, &f)
				}
				got = append(got, f.Index)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("failed requests: got %v, want %v", got, want)
			}
			if calls := uint64((n + maxRequests - 1) / maxRequests); c.Calls() != calls {
				t.Errorf("system calls: got %d, want %d", c.Calls(), calls)
			}
			if have := len(addresses(t, c)); have != n-len(want) {
				t.Errorf("addresses: got %d, want %d", have, n-len(want))
			}
		})
	}
}

// Long requests are divided by their size too.
func TestRequestsAreDividedBySize(t *testing.T) {
	var r Requests
	for range 5 {
		r.End(append(r.Begin(0, 0), make([]byte, maxSend/2)...))
	}
	for first, want := range []int{1, 2, 3, 4, 5} {
		if got := r.fit(first); got != want {
			t.Errorf("end of the list that begins with request %d: got %d, want %d", first, got, want)
		}
	}
}

// An answer that is not read to its end does not disturb the next one.
func TestAskAgainAfterAnError(t *testing.T) {
	c := openInNamespace(t)
	var r Requests
	for i := range 500 {
		addAddress(&r, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}))
	}
	if failed, err := c.Do(t.Context(), &r); err != nil || len(failed) > 0 {
		t.Fatalf("Do: got %d failures and error %v, want none", len(failed), err)
	}
	var ask Requests
	ask.End(append(ask.Begin(unix.RTM_GETADDR, unix.NLM_F_DUMP), make([]byte, unix.SizeofIfAddrmsg)...))
	stop, n := errors.New("stop"), 0
	err := c.Ask(t.Context(), &ask, func([]byte) error {
		n++
		return stop
	})
	if !errors.Is(err, stop) || n != 1 {
		t.Errorf("Ask: got error %v after %d messages, want %v after 1", err, n, stop)
	}
	if got := len(addresses(t, c)); got != 500 {
		t.Errorf("addresses: got %d, want 500", got)
	}
}

func TestRefusals(t *testing.T) {
	c := openInNamespace(t)
	var r Requests
	r.End(append(r.Begin(unix.RTM_GETLINK, unix.NLM_F_ACK), make([]byte, unix.SizeofIfInfomsg)...))
	err := c.Ask(t.Context(), &r, func([]byte) error { return nil })
	if f, ok := errors.AsType[*Failure](err); !ok || f.Errno == 0 {
		t.Errorf("Ask for a link without a name: got error %v, want a *Failure", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Do(ctx, &r); !errors.Is(err, context.Canceled) {
		t.Errorf("Do with an ended context: got error %v, want %v", err, context.Canceled)
	}
	if err := c.Ask(ctx, &r, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Ask with an ended context: got error %v, want %v", err, context.Canceled)
	}
}

// Answers that are missing leave the outcome unknown.
func TestMissingAnswers(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	testenv.NoError(t, err)
	s, err := WrapSocket(fds[0], 1)
	testenv.NoError(t, err)
	c := &Conn{socket: s}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), unix.Close(fds[1])); err != nil {
			t.Error(err)
		}
	})
	var r Requests
	r.End(r.Begin(unix.RTM_NEWADDR, 0))
	if _, err := c.Do(t.Context(), &r); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("Do without answer: got error %v, want %v", err, ErrUnknownOutcome)
	}
}

// After Close, calls fail, and do not use another file that has the number of the file descriptor
// now.
func TestUseAfterClose(t *testing.T) {
	s, err := OpenSocket(unix.NETLINK_ROUTE, Buffers{}, time.Second)
	testenv.NoError(t, err)
	number := s.FD()
	testenv.NoError(t, s.Close())
	other, err := unix.FcntlInt(uintptr(os.Stdin.Fd()), unix.F_DUPFD_CLOEXEC, number)
	testenv.NoError(t, err)
	defer func() { _ = unix.Close(other) }() // The test has failed if it is closed.
	if err := s.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Close: got error %v, want %v", err, os.ErrClosed)
	}
	if _, err := s.Receive(0); !errors.Is(err, unix.EBADF) {
		t.Errorf("Receive after Close: got error %v, want %v", err, unix.EBADF)
	}
	if err := s.Send([]byte("x")); !errors.Is(err, unix.EBADF) {
		t.Errorf("Send after Close: got error %v, want %v", err, unix.EBADF)
	}
	if _, err := unix.FcntlInt(uintptr(other), unix.F_GETFD, 0); other == number && err != nil {
		t.Errorf("another file with the number %d: got error %v, want it to stay open", number, err)
	}
}
