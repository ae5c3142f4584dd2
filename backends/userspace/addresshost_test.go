package userspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// fakeHost is a host whose interface has addresses that a test sees. It uses addresses of the
// loopback network, at which sockets can listen on any system.
type fakeHost struct {
	mu    sync.Mutex
	addrs map[netip.Addr]bool
	// fail returns the error of a call; what is "add" or "remove".
	fail  func(what string, a netip.Addr) error
	calls []string
	lists int // calls of Addresses
	// ignored is an address that is never added, although that succeeds.
	ignored netip.Addr
}

func newFakeHost(addrs ...string) *fakeHost {
	h := &fakeHost{addrs: map[netip.Addr]bool{}, fail: func(string, netip.Addr) error { return nil }}
	for _, a := range addrs {
		h.addrs[netip.MustParseAddr(a)] = true
	}
	return h
}

func (h *fakeHost) Addresses(context.Context) ([]netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lists++
	return slices.Collect(maps.Keys(h.addrs)), nil
}

func (h *fakeHost) Add(_ context.Context, a netip.Addr) error { return h.change("add", a, true) }

func (h *fakeHost) Remove(_ context.Context, a netip.Addr) error { return h.change("remove", a, false) }

func (h *fakeHost) change(what string, a netip.Addr, has bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, what+" "+a.String())
	if err := h.fail(what, a); err != nil {
		return err
	}
	switch {
	case a == h.ignored:
	case has && h.addrs[a]:
		return fs.ErrExist
	case !has && !h.addrs[a]:
		return errors.New("no such address")
	case has:
		h.addrs[a] = true
	default:
		delete(h.addrs, a)
	}
	return nil
}

// meddle changes addresses as another program does.
func (h *fakeHost) meddle(change func(addrs map[netip.Addr]bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.addrs)
}

// wantAddresses checks which addresses the host has.
func (h *fakeHost) wantAddresses(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	var got []string
	for a := range h.addrs {
		got = append(got, a.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("addresses of the host: got %q, want %q", got, want)
	}
}

// wantCalls checks the calls since the last check.
func (h *fakeHost) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.calls)
	if !slices.Equal(h.calls, want) {
		t.Errorf("calls: got %q, want %q", h.calls, want)
	}
	h.calls = nil
}

// on returns a backend on a host. The file at state survives it.
func (h *fakeHost) on(t *testing.T, state string, o Options) *Backend {
	t.Helper()
	o.Capture = Addresses
	o.Addresses.State, o.Addresses.manager = state, h
	b, err := New(o)
	testenv.NoError(t, err)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// start returns a backend on a host, with a file of its own.
func (h *fakeHost) start(t *testing.T, o Options) *Backend {
	t.Helper()
	return h.on(t, filepath.Join(t.TempDir(), "addresses"), o)
}

// frontend is an address and port, and its kind.
type frontend struct {
	kind proxy.FrontendKind
	at   string
}

// servicePort returns a service port that forwards to the endpoints, or rejects if there are none.
func servicePort(name string, protocol v1.Protocol, frontends []frontend, to ...netip.AddrPort) *proxy.ServicePort {
	p := snapshots.Port(name+"/"+string(protocol), strings.Join(objects.Many(len(frontends), func(i int) string { return frontends[i].at }), " "))
	for i, f := range frontends {
		p.Frontends[i].Kind = f.kind
	}
	if p.Cluster = snapshots.At(to...); len(to) > 0 {
		snapshots.Routes(proxy.TrafficRoute{Action: proxy.Forward}, proxy.TrafficRoute{Action: proxy.Forward})(p)
	}
	return p
}

func clusterIP(at string) []frontend { return []frontend{{proxy.ClusterIP, at}} }

// follower applies one snapshot after the other, as a runner does.
type follower struct {
	*Backend
	held proxy.Snapshot
}

func (f *follower) apply(t *testing.T, next proxy.Snapshot) {
	t.Helper()
	testenv.NoError(t, f.try(t, next))
}

func (f *follower) try(t *testing.T, next proxy.Snapshot) error {
	t.Helper()
	err := f.Apply(t.Context(), f.held, next)
	f.held = f.held.Achieved(next, err)
	return err
}

// tcpServer answers each connection with a text. It returns its address.
func tcpServer(t *testing.T, text string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, text)
			_ = c.Close()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

// udpServer answers each datagram with a text and the datagram. It returns its address.
func udpServer(t *testing.T, text string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(append([]byte(text), buf[:n]...), from)
		}
	}()
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

// ask connects to an address, and returns what it gets until the end.
func ask(at string) (string, error) {
	c, err := net.DialTimeout("tcp4", at, 5*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close() //nolint:errcheck // everything was read
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	text, err := io.ReadAll(c)
	return string(text), err
}

func wantTCP(t *testing.T, at, want string) {
	t.Helper()
	if got, err := ask(at); err != nil || got != want {
		t.Errorf("%s: got %q and error %v, want %q", at, got, err, want)
	}
}

// wantNone checks that no connection to an address is answered.
func wantNone(t *testing.T, at string) {
	t.Helper()
	if got, err := ask(at); err == nil {
		t.Errorf("%s: got %q, want an error", at, got)
	}
}

func wantUDP(t *testing.T, at, want string) {
	t.Helper()
	c, err := net.Dial("udp4", at) // receives only from that address
	testenv.NoError(t, err)
	defer c.Close() //nolint:errcheck // everything was read
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 2048)
	if _, err := io.WriteString(c, "?"); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(buf)
	if got := string(buf[:max(n, 0)]); err != nil || got != want+"?" {
		t.Errorf("%s: got %q and error %v, want %q", at, got, err, want+"?")
	}
}

// repair applies a snapshot, as a Runner does, until nothing is left to do after an Apply with this result.
func (f *follower) repair(t *testing.T, s proxy.Snapshot, err error) {
	for err != nil || f.Abilities().Drifted(t.Context()) {
		if err == nil {
			f.held = proxy.Snapshot{} // what a Runner applies after drift
		}
		err = f.try(t, s)
	}
}
