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

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// A connection counts as long as it is open, and the oldest goes but once.
func TestCrowdCounts(t *testing.T) {
	c := newCrowd(2)
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
			t.Errorf("step %d: connection %d has to go, want %d", i, slices.Index(conns, got), step.gone)
		}
	}
}

// What is not open yet is not opened any more once it has been given up.
func TestGivenUpWhilePending(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r *proxy.Runner) {
		f.change(errors.New("in use"), "127.0.0.1")
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		wait(0)
		f.want(t, "a port that is taken", "0s refused 127.0.0.1:30001", "0s a: in use")
		applied(r)
		f.change(nil, "127.0.0.1")
		wait(time.Hour)
		f.want(t, "its Service has gone")
	})
}

// Each failure is tried again soon at first, also when there was one before.
func TestFailuresAreForgotten(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r *proxy.Runner) {
		f.change(errors.New("in use"), "127.0.0.1")
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		wait(2 * time.Second)
		f.change(nil, "127.0.0.1")
		wait(2 * time.Second)
		f.want(t, "attempts", "0s refused 127.0.0.1:30001", "0s a: in use", "1s refused 127.0.0.1:30001", "3s listen 127.0.0.1:30001", "3s a: <nil>")
		if err := f.last.Close(); err != nil {
			t.Fatal(err)
		}
		f.change(errors.New("in use"), "127.0.0.1")
		wait(11 * time.Second)
		f.want(t, "after the socket has ended", "13s refused 127.0.0.1:30001", "13s a: in use", "14s refused 127.0.0.1:30001")
	})
}

// A port that goes and comes back is open again.
func TestPortComesBack(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r *proxy.Runner) {
		for i, port := range []uint16{30001, 30002, 30001} {
			applied(r, servicePort("a", v1.IPv4Protocol, port))
			wait(time.Second)
			want := []string{"0s listen 127.0.0.1:30001", "1s listen 127.0.0.1:30002", "2s listen 127.0.0.1:30001"}[i]
			f.want(t, "a port", want)
		}
	})
}

// Nothing is said of what fails because everything ends.
func TestEndIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := 0
		s, r := watching(t, Options{Report: func(_ types.NamespacedName, _ error) { reports++ }})
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		ctx, cancel := context.WithCancel(t.Context())
		s.run(ctx, ending(cancel), func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil })
		if reports != 0 {
			t.Errorf("%d reports, want none", reports)
		}
	})
}

// ending are sockets that cannot be had since everything ends.
type ending context.CancelFunc

func (e ending) Listen(ctx context.Context, _, _ string) (net.Listener, error) {
	e()
	return nil, ctx.Err()
}

// Run waits for the answers that are being written, but for a second at most.
func TestRunWaitsForAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSockets{start: time.Now()}
		s, _ := watching(t, Options{Pages: map[string]http.Handler{"a": http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
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
		answer, err := io.ReadAll(client)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
			t.Errorf("the answer is %q, error %v, want all of it", answer, err)
		}
		if ended := (<-done).Sub(f.start); ended < 700*time.Millisecond || ended > 100*time.Millisecond+closeTime {
			t.Errorf("Run ended after %v, want after the answer and within a second", ended)
		}
	})
}

// The health check port stays while one port of the Service has it, and nobody is woken
// for endpoints.
func TestCheckPortStays(t *testing.T) {
	s, r := watching(t, Options{})
	first, second := servicePort("a", v1.IPv4Protocol, 30001, "10.0.0.1"), servicePort("a", v1.IPv4Protocol, 30002)
	second.Name.Port = "other"
	applied(r, first)
	clear(s.counts.moved)
	applied(r, first, second)
	if got := s.counts.services[key("a")].port; got != 30001 || len(s.counts.moved) != 0 {
		t.Errorf("the port is %d, and %d have moved; want 30001 and none", got, len(s.counts.moved))
	}
	applied(r, second)
	if got := s.counts.services[key("a")].port; got != 30002 || len(s.counts.moved) != 1 {
		t.Errorf("the port is %d, and %d have moved; want 30002 and one", got, len(s.counts.moved))
	}
}

// A Service of which no frontend needs the local pool has its endpoints in the other.
func TestLocalEndpointsOfTheClusterPool(t *testing.T) {
	s, r := watching(t, Options{})
	p := servicePort("a", v1.IPv4Protocol, 30001)
	p.Cluster = []*endpoints.Endpoint{
		{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Ready: true, Local: true},
		{Addr: netip.MustParseAddrPort("10.0.0.2:80"), Ready: true},
		{Addr: netip.MustParseAddrPort("10.0.0.3:80"), Local: true},
	}
	applied(r, p)
	if got := s.counts.services[key("a")].of(v1.IPv4Protocol); got != 1 {
		t.Errorf("%d endpoints, want the one that is ready and here", got)
	}
}

// The time of the last update is that of what was found right, unless something waits.
func TestLastUpdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := watching(t, Options{Timeout: time.Hour})
		start := time.Now()
		applied(r)
		time.Sleep(time.Minute)
		r.Verified(proxy.Snapshot{})
		if got := s.fresh.updated.Sub(start); got != time.Minute {
			t.Errorf("updated after %v, want when it was verified", got)
		}
		take(t, r)
		time.Sleep(time.Minute)
		r.Verified(proxy.Snapshot{})
		if got := s.fresh.updated.Sub(start); got != time.Minute {
			t.Errorf("with something that waits: updated after %v, want when nothing did", got)
		}
	})
}

// A dataplane that is lost holds nothing for certain, also if only some ports failed.
func TestLostInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := watching(t, Options{})
		a, b := servicePort("a", v1.IPv4Protocol, 30001, "10.0.0.1"), servicePort("b", v1.IPv4Protocol, 30002)
		applied(r, a, b)
		r.Observe(proxy.Sync{
			Snapshot: proxy.NewSnapshot(nil, a, b), Start: time.Now(),
			Err: errors.Join(proxy.ErrDataplaneLost, proxy.PortErrors{b.Name: io.ErrNoProgress}),
		})
		if n := len(s.counts.services); n != 2 {
			t.Errorf("%d Services are known, want both: what is lost is written again", n)
		}
		time.Sleep(timeout)
		if got, body := ask(t, s, http.MethodGet, "/livez"); got != 503 {
			t.Errorf("got %d %s, want 503", got, body)
		}
	})
}

// Addresses that need an interface beside them cannot be listened at.
func TestBindable(t *testing.T) {
	var list []net.Addr
	for _, text := range []string{"127.0.0.1/8", "192.0.2.1/24", "169.254.0.5/16", "fd00::1/64", "fe80::1/64"} {
		ip, n, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, &net.IPNet{IP: ip, Mask: n.Mask})
	}
	got := bindable(append(list, &net.IPAddr{IP: net.IPv4(192, 0, 2, 9)}, &net.IPNet{}))
	want := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("fd00::1")}
	if !slices.Equal(got, want) {
		t.Errorf("addresses %v, want %v", got, want)
	}
}

// A Server that runs again serves what it did before, also that nothing can be served.
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
