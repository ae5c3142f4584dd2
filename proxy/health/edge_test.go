package health

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A connection counts while it is open, and the oldest is closed once.
func TestConnLimitCounts(t *testing.T) {
	c := newConnLimit(2)
	var conns []net.Conn
	for range 5 {
		conn, _ := net.Pipe()
		conns = append(conns, conn)
	}
	for i, step := range []struct {
		conn  int
		state http.ConnState
		gone  int // -1 for none
	}{
		{0, http.StateNew, -1},
		{1, http.StateNew, -1},
		{0, http.StateActive, -1},
		{0, http.StateClosed, -1},
		{2, http.StateNew, -1},
		{3, http.StateNew, 1},
		{4, http.StateNew, 2},
		{1, http.StateClosed, -1},
		{3, http.StateHijacked, -1},
		{0, http.StateNew, -1},
	} {
		var want net.Conn
		if step.gone >= 0 {
			want = conns[step.gone]
		}
		if got := c.count(conns[step.conn], step.state); got != want {
			t.Errorf("step %d: got connection %d to close, want %d", i, slices.Index(conns, got), step.gone)
		}
	}
}

// A socket that could not be opened is not retried after its Service was removed, which ends the error.
func TestServiceRemovedWhilePortIsInUse(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r proxy.Observer) {
		f.change(errors.New("in use"), "127.0.0.1")
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		wait(0)
		f.want(t, "a port in use", "0s refused 127.0.0.1:30001", "0s a: in use")
		applied(r)
		f.change(nil, "127.0.0.1")
		wait(time.Hour)
		f.want(t, "after its Service was removed", "0s a: <nil>")
	})
}

// Retries begin with the shortest delay again after a success.
func TestBackoffStartsAgain(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r proxy.Observer) {
		f.change(errors.New("in use"), "127.0.0.1")
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		wait(2 * time.Second)
		f.change(nil, "127.0.0.1")
		wait(2 * time.Second)
		f.want(t, "attempts", "0s refused 127.0.0.1:30001", "0s a: in use", "1s refused 127.0.0.1:30001", "3s listen 127.0.0.1:30001", "3s a: <nil>")
		testenv.NoError(t, f.last.Close())
		f.change(errors.New("in use"), "127.0.0.1")
		wait(11 * time.Second)
		f.want(t, "after the socket has ended", "13s refused 127.0.0.1:30001", "13s a: in use", "14s refused 127.0.0.1:30001")
	})
}

// A port that was closed can be opened again.
func TestPortIsUsedAgain(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r proxy.Observer) {
		for i, port := range []uint16{30001, 30002, 30001} {
			applied(r, servicePort("a", v1.IPv4Protocol, port))
			wait(time.Second)
			want := []string{"0s listen 127.0.0.1:30001", "1s listen 127.0.0.1:30002", "2s listen 127.0.0.1:30001"}[i]
			f.want(t, "a port", want)
		}
	})
}

// Failures because ctx ended are not reported.
func TestNoReportsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := 0
		s, r := watching(t, Options{Report: func(_ types.NamespacedName, _ error) { reports++ }})
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		ctx, cancel := context.WithCancel(t.Context())
		s.run(ctx, ending(cancel), func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil })
		if reports != 0 {
			t.Errorf("got %d reports, want none", reports)
		}
	})
}

// ending is a listener that ends the context and fails.
type ending context.CancelFunc

func (e ending) Listen(ctx context.Context, _, _ string) (net.Listener, error) {
	e()
	return nil, ctx.Err()
}

// Run waits for replies that are being written, for a second at most.
func TestRunWaitsForReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSockets{start: time.Now()}
		s, _ := watching(t, Options{Pages: map[string]http.Handler{"a:1": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			time.Sleep(700 * time.Millisecond)
		})}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan time.Time)
		go func() {
			s.run(ctx, f, f.addresses)
			done <- time.Now()
		}()
		wait(0)
		client, server := net.Pipe()
		f.last.clients <- server
		go func() { _, _ = io.WriteString(client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") }()
		wait(100 * time.Millisecond)
		cancel()
		got, err := io.ReadAll(client)
		if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 200") {
			t.Errorf("got response %q and error %v, want all of it", got, err)
		}
		if ended := (<-done).Sub(f.start); ended < 700*time.Millisecond || ended > 100*time.Millisecond+closeTime {
			t.Errorf("Run ended after %v, want after the response and within a second", ended)
		}
	})
}

// The health check node port stays while one service port has it, and endpoints do not wake Run.
func TestCheckPortStays(t *testing.T) {
	s, r := watching(t, Options{})
	first, second := servicePort("a", v1.IPv4Protocol, 30001, "10.0.0.1"), servicePort("a", v1.IPv4Protocol, 30002)
	second.Name.Port = "other"
	applied(r, first)
	<-s.wake
	applied(r, first, second)
	if got := s.counts[key("a")].port; got != 30001 || len(s.wake) != 0 {
		t.Errorf("got port %d and Run woken %d times, want 30001 and 0", got, len(s.wake))
	}
	applied(r, second)
	if got := s.counts[key("a")].port; got != 30002 || len(s.wake) != 1 {
		t.Errorf("got port %d and Run woken %d times, want 30002 and 1", got, len(s.wake))
	}
}

// If the service ports of a Service disagree, and the port that is served is removed, the highest
// of the others is next.
func TestHighestCheckPortIsNext(t *testing.T) {
	for range 20 { // The order of a map is random.
		s, r := watching(t, Options{})
		first, second, third := servicePort("a", v1.IPv4Protocol, 30001), servicePort("a", v1.IPv4Protocol, 30003), servicePort("a", v1.IPv4Protocol, 30002)
		second.Name.Port, third.Name.Port = "second", "third"
		applied(r, first)
		applied(r, first, second, third)
		applied(r, second, third)
		if got := s.counts[key("a")].port; got != 30003 {
			t.Fatalf("got port %d, want 30003", got)
		}
	}
}

// Local endpoints count that are ready, whichever endpoints the cluster pool has.
func TestReadyLocalEndpointsCount(t *testing.T) {
	s, r := watching(t, Options{})
	p := servicePort("a", v1.IPv4Protocol, 30001)
	p.Local = snapshots.Endpoints("10.0.0.1:80 N local", "10.0.0.2:80 N", "10.0.0.3:80 U local")
	p.Cluster = p.Local[:2]
	applied(r, p)
	if got := readyLocal(s.counts.portsOf(key("a")), v1.IPv4Protocol); got != 1 {
		t.Errorf("got %d endpoints, want the one that is ready and local", got)
	}
}

// The last update is when the dataplane was found right, unless a change waits.
func TestLastUpdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := watching(t, Options{Timeout: time.Hour})
		start := time.Now()
		applied(r)
		time.Sleep(time.Minute)
		r.Verified(proxy.Snapshot{})
		if got := s.fresh.updated.Sub(start); got != time.Minute {
			t.Errorf("got an update after %v, want when it was verified", got)
		}
		take(t, r)
		time.Sleep(time.Minute)
		r.Verified(proxy.Snapshot{})
		if got := s.fresh.updated.Sub(start); got != time.Minute {
			t.Errorf("while a change waits: got an update after %v, want the one before", got)
		}
	})
}

// A lost dataplane makes the proxy unhealthy, also if only some ports failed.
func TestLostInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := watching(t, Options{})
		a, b := servicePort("a", v1.IPv4Protocol, 30001, "10.0.0.1"), servicePort("b", v1.IPv4Protocol, 30002)
		applied(r, a, b)
		r.Synced(proxy.Sync{
			Snapshot: proxy.NewSnapshot(nil, a, b), Start: time.Now(),
			Err: errors.Join(proxy.ErrDataplaneLost, proxy.PortErrors{b.Name: io.ErrNoProgress}),
		})
		if n := len(s.counts); n != 2 {
			t.Errorf("got %d Services, want both: a lost dataplane is written again", n)
		}
		time.Sleep(timeout)
		if got, body := request(t, s, http.MethodGet, "/livez"); got != 503 {
			t.Errorf("got %d %s, want 503", got, body)
		}
	})
}

// Addresses that need an interface (link-local ones) are left out.
func TestBindable(t *testing.T) {
	var list []net.Addr
	for _, text := range []string{"127.0.0.1/8", "192.0.2.1/24", "169.254.0.5/16", "fd00::1/64", "fe80::1/64"} {
		ip, n, err := net.ParseCIDR(text)
		testenv.NoError(t, err)
		list = append(list, &net.IPNet{IP: ip, Mask: n.Mask})
	}
	got := bindable(append(list, &net.IPAddr{IP: net.IPv4(192, 0, 2, 9)}, &net.IPNet{}))
	want := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")}
	if !slices.Equal(got, want) {
		t.Errorf("got addresses %v, want %v", got, want)
	}
}

// A Server that runs again serves the same ports, and reports the same errors.
func TestRunsAgain(t *testing.T) {
	for addr, want := range map[string][]string{
		"127.0.0.1": {"0s listen 127.0.0.1:30001"},
		"192.0.2.9": {"0s a: " + errNoAddress.Error()},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fakeSockets{}
			f.change(nil, addr)
			s, r := watching(t, Options{Report: func(name types.NamespacedName, err error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.note(name.Name + ": " + err.Error())
			}})
			applied(r, servicePort("a", v1.IPv4Protocol, 30001))
			for range 2 {
				f.start = time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() {
					s.run(ctx, f, f.addresses)
					close(done)
				}()
				wait(time.Second)
				f.want(t, "a run", want...)
				cancel()
				<-done
			}
		})
	}
}
