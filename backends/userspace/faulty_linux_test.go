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

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/userspace/internal/engine"
	"github.com/vipkit/vipkit/backends/userspace/internal/netfilter"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/proxy"
)

// NewFaulty returns a backend whose commits pass through around.
func NewFaulty(o Options, around func(commit func() error) error) (*Backend, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	return o.openNetfilter(func(c *netfilter.Capture) target {
		return backendtest.Faulty[netfilter.Key, netfilter.Value](c, around)
	})
}

// NewDisturbed returns a backend whose nf_tables transactions get faults, and have maxBatch bytes
// at most; zero leaves the limit to the kernel.
func NewDisturbed(o Options, d *stagetest.Disturbance, maxBatch int) (*Backend, error) {
	b, err := New(o)
	if err != nil {
		return nil, err
	}
	if l, ok := b.listeners.(*sharedListeners); ok {
		d.Limit(l.capture.Conn, maxBatch)
	}
	return b, nil
}

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
			Connections: 8, Sessions: 9,
		}
		want := engine.Config{
			Timeouts: engine.Timeouts(o.Timeouts), Connections: 8, Sessions: 9, AsNode: asNode,
		}
		if diff := cmp.Diff(want, o.engineConfig(&someDialer{}), cmpopts.IgnoreFields(engine.Config{}, "Hooks")); diff != "" {
			t.Errorf("%v (-want +got):\n%s", capture, diff)
		}
	}
}

// The engine has the capture's dialer, and the hooks.
func TestHooksReachTheEngine(t *testing.T) {
	t.Parallel()
	own := &someDialer{}
	o := Options{Hooks: Hooks{
		Pick: func(f Flow, among []*endpoints.Endpoint) int {
			own.called = append(own.called, "pick for "+f.Client.String())
			return len(among) - 1
		},
		FirstConnection: func(f Flow, name proxy.ServicePortName) {
			own.called = append(own.called, f.Client.String()+" first of "+name.Name)
		},
		ProxyProtocol: func(proxy.ServicePortName) int { return 2 },
	}}
	c := o.engineConfig(own)
	client, name := netip.MustParseAddrPort("192.0.2.1:1"), proxy.ServicePortName{}
	name.Name = "web"
	_, _ = c.Hooks.Dial(t.Context(), engine.Dial{From: client.Addr()})
	c.Hooks.FirstConnection(engine.Flow{Client: client}, name)
	if got := c.Hooks.Pick(engine.Flow{Client: client}, make([]*endpoints.Endpoint, 3)); got != 2 {
		t.Errorf("Pick: got endpoint %d, want 2", got)
	}
	if want := []string{"dial from 192.0.2.1", "192.0.2.1:1 first of web", "pick for 192.0.2.1:1"}; !slices.Equal(own.called, want) {
		t.Errorf("got %q, want %q", own.called, want)
	}
	if got := c.Hooks.ProxyProtocol(name); got != 2 {
		t.Errorf("ProxyProtocol: got version %d, want 2", got)
	}
	if c = (&Options{}).engineConfig(own); c.Hooks.Pick != nil || c.Hooks.FirstConnection != nil || c.Hooks.ProxyProtocol != nil {
		t.Errorf("without hooks: got %+v, want only a dialer", c.Hooks)
	}
}
