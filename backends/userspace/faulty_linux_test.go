package userspace

import (
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
	descriptors, err := descriptorLimit()
	if err != nil {
		return nil, err
	}
	return o.openNetfilter(descriptors, func(c *netfilter.Capture) target {
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
	if c, ok := b.capture.(*netfilter.Capture); ok {
		d.Limit(c.Conn, maxBatch)
	}
	return b, nil
}

// All options reach the engine.
func TestOptionsReachTheEngine(t *testing.T) {
	t.Parallel()
	o := Options{
		Timeouts: Timeouts{
			Dial: []time.Duration{1}, Suspect: 2, Idle: 3, HalfClosed: 4, Drain: 5, Session: 6, Wake: 7,
		},
		Connections: 8, Sessions: 9,
	}
	var got engine.Config
	o.configure(&got)
	want := engine.Config{Timeouts: engine.Timeouts(o.Timeouts), Connections: 8, Sessions: 9}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(engine.Config{}, "Hooks")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The engine has the hooks.
func TestHooksReachTheEngine(t *testing.T) {
	t.Parallel()
	var called []string
	o := Options{Hooks: Hooks{
		Pick: func(f Flow, among []*endpoints.Endpoint) int {
			called = append(called, "pick for "+f.Client.String())
			return len(among) - 1
		},
		FirstConnection: func(f Flow, name proxy.ServicePortName) {
			called = append(called, f.Client.String()+" first of "+name.Name)
		},
		ProxyProtocol: func(proxy.ServicePortName) int { return 2 },
	}}
	var c engine.Config
	o.configure(&c)
	client, name := netip.MustParseAddrPort("192.0.2.1:1"), proxy.ServicePortName{}
	name.Name = "web"
	c.Hooks.FirstConnection(engine.Flow{Client: client}, name)
	if got := c.Hooks.Pick(engine.Flow{Client: client}, make([]*endpoints.Endpoint, 3)); got != 2 {
		t.Errorf("Pick: got endpoint %d, want 2", got)
	}
	if want := []string{"192.0.2.1:1 first of web", "pick for 192.0.2.1:1"}; !slices.Equal(called, want) {
		t.Errorf("got %q, want %q", called, want)
	}
	if got := c.Hooks.ProxyProtocol(name); got != 2 {
		t.Errorf("ProxyProtocol: got version %d, want 2", got)
	}
	c = engine.Config{}
	if (&Options{}).configure(&c); c.Hooks.Pick != nil || c.Hooks.FirstConnection != nil || c.Hooks.ProxyProtocol != nil {
		t.Errorf("without hooks: got %+v, want none", c.Hooks)
	}
}
