package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// someDialer records its calls, and fails.
type someDialer struct{ called []string }

func (d *someDialer) Dial(_ context.Context, to engine.Dial) (net.Conn, error) {
	d.called = append(d.called, "dial from "+to.From.String())
	return nil, errors.ErrUnsupported
}

// All options reach the engine. With captures other than TPROXY, endpoints see the node.
func TestOptionsReachTheEngine(t *testing.T) {
	t.Parallel()
	for capture, asNode := range map[Capture]bool{TPROXY: false, Redirect: true} {
		o := Options{
			Capture: capture,
			Timeouts: Timeouts{
				Dial: []time.Duration{1}, Suspect: 2, Idle: 3, HalfClosed: 4, Drain: 5, Session: 6, Wake: 7,
			},
			Connections: 8, Sessions: 9, AffinityClients: 10, AffinityTotal: 11,
		}
		want := engine.Config{
			Timeouts: o.Timeouts, Connections: 8, Sessions: 9, AffinityClients: 10, AffinityTotal: 11, AsNode: asNode,
		}
		if diff := cmp.Diff(want, o.engineConfig(&someDialer{}), cmpopts.IgnoreFields(engine.Config{}, "Hooks")); diff != "" {
			t.Errorf("%v (-want +got):\n%s", capture, diff)
		}
	}
}

// The engine uses the capture's dialer, unless Hooks.Dial is set, which is then the only dialer.
// It gets the other hooks unchanged.
func TestHooksReachTheEngine(t *testing.T) {
	t.Parallel()
	d := Dial{Protocol: v1.ProtocolTCP, From: netip.MustParseAddr("192.0.2.1"), To: netip.MustParseAddrPort("10.0.0.1:80")}
	own := &someDialer{}
	o := Options{Hooks: Hooks{
		Pick: func(_ Flow, among []*endpoints.Endpoint) int { return len(among) - 1 },
		FirstConnection: func(f Flow, name proxy.ServicePortName) {
			own.called = append(own.called, f.Client.String()+" first of "+name.Name)
		},
		ProxyProtocol: func(proxy.ServicePortName) int { return 2 },
	}}
	c := o.engineConfig(own)
	_, _ = c.Hooks.Dial(t.Context(), d)
	name := proxy.ServicePortName{}
	name.Name = "web"
	c.Hooks.FirstConnection(Flow{Client: netip.AddrPortFrom(d.From, 1)}, name)
	if want := []string{"dial from 192.0.2.1", "192.0.2.1:1 first of web"}; !slices.Equal(own.called, want) {
		t.Errorf("got %q, want %q", own.called, want)
	}
	if got := c.Hooks.Pick(Flow{}, make([]*endpoints.Endpoint, 3)); got != 2 {
		t.Errorf("Pick: got endpoint %d, want 2", got)
	}
	if got := c.Hooks.ProxyProtocol(name); got != 2 {
		t.Errorf("ProxyProtocol: got version %d, want 2", got)
	}
	var dialed []Dial
	o.Hooks.Dial = func(_ context.Context, d Dial) (net.Conn, error) {
		dialed = append(dialed, d)
		return nil, errors.ErrUnsupported
	}
	c = o.engineConfig(own)
	if _, _ = c.Hooks.Dial(t.Context(), d); !slices.Equal(dialed, []Dial{d}) {
		t.Errorf("Hooks.Dial: got %+v, want %+v", dialed, d)
	}
}
