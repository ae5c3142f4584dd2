package addresses

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/backends/userspace/internal/neterr"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// loopbackPort returns a service port with a node port.
func loopbackPort(name string, nodePort uint16) *proxy.ServicePort {
	return snapshots.With(snapshots.Port(name, fmt.Sprintf(":%d", nodePort)), snapshots.Routes(drop(), drop()))
}

// newLoopback returns a Loopback for IPv4 and a node with node ports at a loopback address.
func newLoopback(t *testing.T, listeners int) (*Loopback, *proxy.Node, netip.Addr) {
	t.Helper()
	random := testenv.Random(t)
	at := netip.AddrFrom4([4]byte{127, 100 + byte(random.IntN(100)), byte(random.IntN(256)), byte(1 + random.IntN(250))})
	e, err := engine.New(engine.Config{})
	testenv.NoError(t, err)
	sockets, err := host.OpenSockets()
	testenv.NoError(t, err)
	l := NewLoopback(Serving{Sockets: sockets, Families: []v1.IPFamily{v1.IPv4Protocol}}, listeners)
	l.ServeBy(e)
	t.Cleanup(func() {
		err := l.CloseListeners()
		e.Close()
		testenv.NoError(t, errors.Join(err, sockets.Close()))
	})
	return l, &proxy.Node{NodePorts: proxy.NodePortAddresses{Loopback: []netip.Prefix{netip.PrefixFrom(at, 32)}}}, at
}

// At the limit of listeners further service ports are errors, also if one that is removed in the same
// Apply would make room for them; all others are served. Once there is room, they are served.
func TestLoopbackLimit(t *testing.T) {
	l, node, at := newLoopback(t, 2)
	b := backends.New(l.Render, backends.Target[Key, Value](l))
	var held proxy.Snapshot
	for i, step := range []struct{ ports, refused, listens string }{
		{"a1 b2", "", "12"},
		{"a1 b2 c3 d4", "cd", "12"},
		{"a1 b2 c3 d4", "cd", "12"},
		{"a1 c3 d4", "d", "13"},
		{"a1 b3 c2", "c", "13"},
		{"b3 c2", "", "23"},
		{"b2 c3", "", "23"},
		{"", "", ""},
	} {
		var ports []*proxy.ServicePort
		for text := step.ports; text != ""; {
			ports = append(ports, loopbackPort(text[:1], 30080+uint16(text[1]-'0')))
			text = text[min(3, len(text)):]
		}
		next := proxy.NewSnapshot(node, ports...)
		held = applyTwice(t, b, held, next)
		got := ""
		for _, p := range ports {
			if have, ok := held.Get(p.Name); !ok || !have.Equal(p) {
				got += p.Name.Name
			}
		}
		if got != step.refused {
			t.Errorf("step %d, %s: got %q refused, want %q", i, step.ports, got, step.refused)
		}
		if got := listening(t, at); got != step.listens {
			t.Errorf("step %d, %s: got listeners at %q, want %q", i, step.ports, got, step.listens)
		}
	}
}

// applyTwice applies a snapshot, and again if some service ports were refused, as a Runner does. It returns
// what is served then.
func applyTwice(t *testing.T, b proxy.Backend, held, next proxy.Snapshot) proxy.Snapshot {
	t.Helper()
	for range 2 {
		err := b.Apply(t.Context(), held, next)
		if _, some := errors.AsType[proxy.PortErrors](err); err != nil && (!some || !strings.Contains(err.Error(), "RLIMIT_NOFILE")) {
			t.Fatalf("got error %v, want that of a limit", err)
		}
		held = held.Achieved(next, err)
	}
	return held
}

// listening returns the numbers of the node ports that accept connections.
func listening(t *testing.T, at netip.Addr) (all string) {
	t.Helper()
	for n := range 5 {
		c, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", netip.AddrPortFrom(at, 30080+uint16(n)).String())
		if err == nil {
			_ = c.Close()
		}
		if neterr.Of(err) != neterr.Undelivered { // not refused
			all += fmt.Sprint(n)
		}
	}
	return all
}
