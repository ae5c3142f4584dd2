package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// fakeSockets is a listener that opens sockets without a network, or refuses, and logs both.
type fakeSockets struct {
	start time.Time

	mu     sync.Mutex
	refuse error
	log    []string
	last   *fakeSocket
	addrs  []netip.Addr // of the node
}

func (f *fakeSockets) Listen(_ context.Context, _, address string) (net.Listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		f.note("refused " + address)
		return nil, f.refuse
	}
	f.note("listen " + address)
	f.last = &fakeSocket{ended: make(chan struct{}), clients: make(chan net.Conn)}
	return f.last, nil
}

// change sets the error of Listen, and the addresses of the node.
func (f *fakeSockets) change(refuse error, addrs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse, f.addrs = refuse, nil
	for _, a := range addrs {
		f.addrs = append(f.addrs, netip.MustParseAddr(a))
	}
}

func (f *fakeSockets) addresses() ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.addrs) == 0 {
		return nil, errors.New("unavailable")
	}
	return f.addrs, nil
}

// note requires f.mu.
func (f *fakeSockets) note(what string) {
	f.log = append(f.log, fmt.Sprintf("%v %s", time.Since(f.start), what))
}

func (f *fakeSockets) want(t *testing.T, what string, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.log) // Events of one moment have no order.
	slices.Sort(want)
	testenv.Same(t, want, f.log, "%s", what)
	f.log = nil
}

// fakeSocket is a socket without a network.
type fakeSocket struct {
	net.Listener
	ended   chan struct{}
	clients chan net.Conn
}

func (s *fakeSocket) Accept() (net.Conn, error) {
	select {
	case c := <-s.clients:
		return c, nil
	case <-s.ended:
		return nil, errors.New("socket has ended")
	}
}

func (s *fakeSocket) Close() error {
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
	return nil
}

// inBubble runs a Server with fake sockets and fake time.
func inBubble(t *testing.T, test func(*fakeSockets, proxy.Observer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeSockets{start: time.Now()}
		f.change(nil, "127.0.0.1")
		s, r := watching(t, Options{Report: func(name types.NamespacedName, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.note(fmt.Sprintf("%s: %v", name.Name, err))
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			s.run(ctx, f, f.addresses)
			close(done)
		}()
		test(f, r)
		cancel()
		<-done
	})
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestRetries(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r proxy.Observer) {
		f.change(errors.New("in use"), "127.0.0.1")
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		wait(95 * time.Second)
		f.want(t, "attempts and reports", "0s refused 127.0.0.1:30001", "0s a: in use",
			"1s refused 127.0.0.1:30001", "3s refused 127.0.0.1:30001", "7s refused 127.0.0.1:30001", "15s refused 127.0.0.1:30001",
			"31s refused 127.0.0.1:30001", "1m1s refused 127.0.0.1:30001", "1m31s refused 127.0.0.1:30001")
		f.change(nil, "127.0.0.1")
		applied(r, servicePort("a", v1.IPv4Protocol, 30002))
		wait(0)
		f.want(t, "another port is tried at once", "1m35s listen 127.0.0.1:30002", "1m35s a: <nil>")
		wait(time.Hour)
		f.want(t, "and then nothing")
	})
}

// The end of an error is reported when the address that it is about is removed.
func TestErrorOfAnAddressThatIsGone(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r proxy.Observer) {
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		wait(time.Second)
		f.want(t, "at first", "0s listen 127.0.0.1:30001")
		inUse := errors.New("in use")
		f.change(inUse, "127.0.0.1", "::1")
		wait(10 * time.Second)
		f.want(t, "with an address whose port is in use", "10s refused [::1]:30001", "10s a: in use", "11s refused [::1]:30001")
		f.change(inUse, "127.0.0.1")
		wait(20 * time.Second)
		f.want(t, "without it", "13s refused [::1]:30001", "17s refused [::1]:30001", "25s a: <nil>")
		f.change(inUse, "127.0.0.1", "::1")
		wait(5 * time.Second)
		f.want(t, "with it again", "35s refused [::1]:30001", "35s a: in use", "36s refused [::1]:30001")
	})
}

func TestSocketThatEnds(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r proxy.Observer) {
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		wait(time.Second)
		testenv.NoError(t, f.last.Close())
		wait(time.Minute)
		f.want(t, "a socket that fails is replaced", "0s listen 127.0.0.1:30001", "10s listen 127.0.0.1:30001")
	})
}

// Slow and idle clients are disconnected after a timeout.
func TestSlowClients(t *testing.T) {
	for request, want := range map[string]time.Duration{
		"":                                  5 * time.Second,
		"GET / HTTP/1.1\r\n":                5 * time.Second,
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n": time.Minute, // a further request may follow
	} {
		inBubble(t, func(f *fakeSockets, r proxy.Observer) {
			applied(r, servicePort("a", v1.IPv4Protocol, 30001))
			wait(0)
			client, server := net.Pipe()
			f.last.clients <- server
			start := time.Now()
			if _, err := io.WriteString(client, request); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(client)
			if took := time.Since(start); took != want {
				t.Errorf("%q: the connection ended after %v with error %v, want %v; the response was %q", request, took, err, want, got)
			}
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAddressesAreFollowed(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r proxy.Observer) {
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		wait(time.Second)
		f.want(t, "at first", "0s listen 127.0.0.1:30001")

		f.change(nil, "127.0.0.1", "::1", "192.0.2.1")
		wait(time.Minute)
		f.want(t, "with a new address", "10s listen [::1]:30001")

		f.change(nil)
		wait(time.Minute)
		f.want(t, "the addresses cannot be read")

		f.change(nil, "192.0.2.1")
		wait(10 * time.Second)
		f.want(t, "without the selected addresses", "2m10s a: "+errNoAddress.Error())

		everywhere := &proxy.Node{NodePorts: proxy.NodePortAddresses{All: true}}
		appliedAt(r, everywhere, servicePort("a", v1.IPv4Protocol, 30001), servicePort("b", v1.IPv4Protocol, 30002))
		wait(0)
		f.want(t, "the node selects all addresses", "2m11s a: <nil>", "2m11s listen :30001", "2m11s listen :30002")
		last := f.last

		appliedAt(r, atLoopback())
		wait(time.Minute)
		f.want(t, "no Service is left")
		select {
		case <-last.ended:
		default:
			t.Error("the socket of a removed Service is still open")
		}
	})
}

// A change of the node alone takes effect at once; to listen at all addresses, Run need not
// read them.
func TestAllAddressesAreNotRead(t *testing.T) {
	inBubble(t, func(f *fakeSockets, r proxy.Observer) {
		applied(r, servicePort("a", v1.IPv4Protocol, 30001))
		wait(time.Second)
		f.want(t, "at first", "0s listen 127.0.0.1:30001")
		f.change(nil)
		appliedAt(r, &proxy.Node{NodePorts: proxy.NodePortAddresses{All: true}}, servicePort("a", v1.IPv4Protocol, 30001))
		wait(0)
		f.want(t, "with all addresses", "1s listen :30001")
	})
}

func TestHosts(t *testing.T) {
	addrs := []netip.Addr{
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.5"),
		netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8::5"),
	}
	for _, tc := range []struct {
		name     string
		all      bool
		prefixes []string
		want     []string
	}{
		{"none", false, nil, nil},
		{"all", true, nil, []string{"tcp :1"}},
		{"both families", false, []string{"0.0.0.0/0", "::/0"}, []string{"tcp :1"}},
		{"all IPv4", false, []string{"0.0.0.0/0"}, []string{"tcp4 0.0.0.0:1"}},
		{"all IPv6 and some IPv4", false, []string{"::/0", "192.0.2.5/32"}, []string{"tcp 192.0.2.5:1", "tcp6 [::]:1"}},
		{"all IPv4 and some IPv6", false, []string{"0.0.0.0/0", "2001:db8::/64"}, []string{"tcp [2001:db8::5]:1", "tcp4 0.0.0.0:1"}},
		{"some", false, []string{"192.0.2.0/24", "192.0.0.0/8", "2001:db8::/64"}, []string{"tcp 192.0.2.5:1", "tcp 192.0.2.7:1", "tcp [2001:db8::5]:1"}},
		{"none of the node", false, []string{"198.51.100.0/24"}, nil},
	} {
		chosen := proxy.NodePortAddresses{All: tc.all, Prefixes: snapshots.Prefixes(tc.prefixes...)}
		var got []string
		for _, h := range hostsOf(chosen, addrs) {
			p := h.at(1)
			got = append(got, p.network+" "+p.address)
		}
		testenv.Same(t, tc.want, got, "%s: hosts", tc.name)
	}
	if own, err := machineAddresses(); err != nil || len(own) == 0 {
		t.Errorf("machineAddresses: got %v and error %v, want some", own, err)
	}
}
