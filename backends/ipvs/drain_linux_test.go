//go:build ipvs

package ipvs

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// draining is a Service with two endpoints, an open connection to the first one, and the
// Service without that endpoint.
type drainStage struct {
	*stage
	*talkers
	both, second *proxy.ServicePort
	vip          netip.AddrPort
	leaving      netip.AddrPort
	open         *conversation
}

func newDrainStage(t *testing.T, o Options, change func(*proxy.ServicePort)) *drainStage {
	t.Helper()
	s := newStage(t, o)
	d := &drainStage{stage: s, talkers: newTalkers(t, s, 2)}
	d.both, d.second = d.port(0, 0, 1), d.port(0, 1)
	if change != nil {
		change(d.both)
		change(d.second)
	}
	d.vip, d.leaving = d.both.Frontends[0].Addr, d.real[0]
	s.Apply(t, snapshotOf(d.both))
	if d.both.Name.Protocol == v1.ProtocolSCTP {
		d.listenSCTP(t)
	}
	d.open = d.openTo(t, d.network(), d.vip, d.Hosts[0])
	return d
}

// network returns what package net calls the protocol.
func (d *drainStage) network() string { return strings.ToLower(string(d.both.Name.Protocol)) }

// stays requires that the leaving endpoint drains, and returns until when.
func (d *drainStage) stays(t *testing.T, when string) (until uint32) {
	t.Helper()
	got, ok := d.destinations(t, d.both)[d.leaving]
	if !ok || got.Weight != 0 || got.Upper == 0 {
		t.Errorf("%s: real server %v: got %+v, exists: %t, want weight 0 and a deadline", when, d.leaving, got, ok)
	}
	return got.Upper
}

func (d *drainStage) awaitGone(t *testing.T, when string) {
	t.Helper()
	await(t, when+": the removal of "+d.leaving.String(), func() bool {
		_, ok := d.destinations(t, d.both)[d.leaving]
		return !ok
	})
	d.awaitIdle(t)
}

// awaitIdle waits until nothing drains.
func (d *drainStage) awaitIdle(t *testing.T) {
	t.Helper()
	b := d.backend(t)
	await(t, "the end of the goroutine that drains", func() bool {
		b.target.mu.Lock()
		defer b.target.mu.Unlock()
		return b.target.drainer.stop == nil
	})
}

// An open connection keeps its endpoint, which gets no new ones and is removed after the
// connection has ended. The dump is as without it.
func TestDrainUntilConnectionsEnd(t *testing.T) {
	d := newDrainStage(t, Options{}, nil)
	earliest := uptime() + uint32(DefaultDrainTimeout/time.Second)
	d.Apply(t, snapshotOf(d.second))
	until := d.stays(t, "after the endpoint left")
	if until < earliest || until > earliest+60 {
		t.Errorf("deadline: got second %d, want %d or little more", until, earliest)
	}
	d.open.asks(t, "after the endpoint left", d.Hosts[0])
	d.reach(t, "after the endpoint left", "tcp", d.vip, d.Hosts[1])
	d.isAsFresh(t, "while the endpoint drains")
	d.Applied = proxy.Snapshot{}
	before := d.Operations(t)
	d.Apply(t, snapshotOf(d.second))
	if got := d.Operations(t) - before; got != 0 {
		t.Errorf("operations of a resync while the endpoint drains: got %d, want 0", got)
	}
	if got := d.stays(t, "after a resync"); got != until {
		t.Errorf("deadline after a resync: got %d, want %d", got, until)
	}
	d.open.asks(t, "after a resync", d.Hosts[0])
	d.open.reset()
	d.awaitGone(t, "after the connection ended")
}

// Draining ends at the deadline, with the connection.
func TestDrainDeadline(t *testing.T) {
	d := newDrainStage(t, Options{DrainTimeout: 2 * time.Second}, nil)
	d.Apply(t, snapshotOf(d.second))
	d.awaitGone(t, "after the deadline")
	if got, err := d.open.ask(); err == nil {
		t.Errorf("open connection after the deadline: got an answer of %v, want an error", got)
	}
}

// Another process goes on with draining: until the deadline that the first one has set, and
// until the connection ends.
func TestDrainAcrossRestarts(t *testing.T) {
	t.Run("deadline", func(t *testing.T) {
		d := newDrainStage(t, Options{DrainTimeout: 6 * time.Second}, nil)
		d.Apply(t, snapshotOf(d.second))
		until := d.stays(t, "after the endpoint left")
		d.Options.DrainTimeout = time.Hour
		d.adopts(t, snapshotOf(d.second))
		if now, ok := d.destinations(t, d.both)[d.leaving]; ok && now.Upper != until {
			t.Errorf("deadline after a restart: got %d, want %d", now.Upper, until)
		}
		d.awaitGone(t, "after the deadline")
		if now := uptime(); now < until {
			t.Errorf("removed at second %d, want not before %d", now, until)
		}
	})
	t.Run("connection", func(t *testing.T) {
		d := newDrainStage(t, Options{}, nil)
		d.Apply(t, snapshotOf(d.second))
		d.adopts(t, snapshotOf(d.second))
		d.stays(t, "after a restart")
		d.open.asks(t, "after a restart", d.Hosts[0])
		d.reach(t, "after a restart", "tcp", d.vip, d.Hosts[1])
		d.open.reset()
		d.awaitGone(t, "after the connection ended")
	})
	t.Run("endpoint returns", func(t *testing.T) {
		d := newDrainStage(t, Options{}, nil)
		d.Apply(t, snapshotOf(d.second))
		d.restart(t)
		d.returns(t)
	})
	t.Run("without draining", func(t *testing.T) {
		d := newDrainStage(t, Options{}, nil)
		d.Apply(t, snapshotOf(d.second))
		d.Options.DrainTimeout = -1
		d.restart(t)
		d.Apply(t, snapshotOf(d.second))
		d.isGone(t)
	})
}

// returns applies both endpoints again. The connection must live.
func (d *drainStage) returns(t *testing.T) {
	t.Helper()
	d.Apply(t, snapshotOf(d.both))
	got := d.destinations(t, d.both)[d.leaving]
	want := ipvs.Destination{Addr: d.leaving, Weight: 1}
	if got != want {
		t.Errorf("real server that returned: got %+v, want %+v", got, want)
	}
	d.open.asks(t, "after the endpoint returned", d.Hosts[0])
	d.openTo(t, "tcp", d.vip, d.Hosts[0]).reset()
	d.isAsFresh(t, "after the endpoint returned")
	d.awaitIdle(t)
}

func (d *drainStage) isGone(t *testing.T) {
	t.Helper()
	if got, ok := d.destinations(t, d.both)[d.leaving]; ok {
		t.Errorf("real server: got %+v, want none", got)
	}
	if got, err := d.open.ask(); err == nil {
		t.Errorf("open connection: got an answer of %v, want an error", got)
	}
}

// An endpoint that returns while it drains gets new connections, and keeps the old ones.
func TestDrainEndpointReturns(t *testing.T) {
	d := newDrainStage(t, Options{}, nil)
	d.Apply(t, snapshotOf(d.second))
	d.returns(t)
	d.open.reset()
}

// Without draining, open connections end at once.
func TestNoDraining(t *testing.T) {
	d := newDrainStage(t, Options{DrainTimeout: -1}, nil)
	d.Apply(t, snapshotOf(d.second))
	d.isGone(t)
	d.reach(t, "after the endpoint left", "tcp", d.vip, d.Hosts[1])
}

// A terminating endpoint that still serves keeps its flows at weight 0, for all protocols. When
// it is gone, a TCP connection drains, a UDP flow moves to another endpoint at once, and an
// association of SCTP ends.
func TestTerminatingEndpoints(t *testing.T) {
	for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} {
		t.Run(string(protocol), func(t *testing.T) {
			d := newDrainStage(t, Options{}, func(p *proxy.ServicePort) { p.Name.Protocol = protocol })
			terminating := *d.second
			terminating.Draining = []*endpoints.Endpoint{d.endpoint(0)}
			d.Apply(t, snapshotOf(&terminating))
			got := d.destinations(t, d.both)[d.leaving]
			if want := (ipvs.Destination{Addr: d.leaving}); got != want {
				t.Errorf("terminating real server: got %+v, want %+v", got, want)
			}
			d.open.asks(t, "while it terminates", d.Hosts[0])
			d.reach(t, "while it terminates", d.network(), d.vip, d.Hosts[1])
			d.isAsFresh(t, "while it terminates")
			d.adopts(t, snapshotOf(&terminating))
			d.Apply(t, snapshotOf(d.second))
			if protocol == v1.ProtocolTCP {
				d.stays(t, "after it ended")
				d.open.asks(t, "after it ended", d.Hosts[0])
				d.Apply(t, snapshotOf(&terminating))
				if got := d.destinations(t, d.both)[d.leaving]; got != (ipvs.Destination{Addr: d.leaving}) {
					t.Errorf("real server that terminates again: got %+v, want no deadline", got)
				}
				d.returns(t)
				return
			}
			if protocol == v1.ProtocolSCTP {
				d.isGone(t)
				d.reach(t, "after it ended", d.network(), d.vip, d.Hosts[1])
				return
			}
			await(t, "the flow's move to the other endpoint", func() bool { // the kernel may drop a datagram meanwhile
				got, err := d.open.askWithin(time.Second)
				return err == nil && got == d.Hosts[1]
			})
			if got, ok := d.destinations(t, d.both)[d.leaving]; ok {
				t.Errorf("real server of UDP: got %+v, want none", got)
			}
		})
	}
}

// While an endpoint drains, no client is refused, whatever the scheduler: also not by those
// that choose by hash. With dh, which refuses clients of draining endpoints, they go at once,
// also if a Service changes to dh while one drains.
func TestDrainBySchedulers(t *testing.T) {
	for _, scheduler := range []string{"wlc", "sh", "dh", "mh"} {
		t.Run(scheduler, func(t *testing.T) {
			by := func(p *proxy.ServicePort, name string) *proxy.ServicePort {
				p = new(*p)
				p.Annotations = map[string]string{SchedulerAnnotation: name}
				return p
			}
			start := scheduler
			if scheduler == "dh" {
				start = "rr" // dh sends all connections to one endpoint
			}
			d := newDrainStage(t, Options{}, nil)
			sources := []netip.Addr{{}}
			for i := range 12 {
				a := netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)})
				testenv.NoError(t, d.Client.AddSecondary("eth0", netip.PrefixFrom(a, 24)))
				sources = append(sources, a)
			}
			d.both, d.second = by(d.both, start), by(d.second, start)
			d.Apply(t, snapshotOf(d.both))
			d.open.asks(t, "with scheduler "+start, d.Hosts[0])
			d.Apply(t, snapshotOf(d.second))
			d.stays(t, "with scheduler "+start)
			d.Apply(t, snapshotOf(by(d.second, scheduler)))
			for _, from := range sources {
				c, err := d.talkers.open(t, "tcp", d.vip, from)
				if err != nil {
					t.Errorf("new connection from %v: got error %v, want none", from, err)
					continue
				}
				c.asks(t, "new connection", d.Hosts[1])
				c.reset()
			}
			if scheduler == "dh" {
				d.isGone(t)
			} else {
				d.open.asks(t, "while it drains", d.Hosts[0])
			}
			d.isAsFresh(t, "while it drains")
		})
	}
}

// With dh, an endpoint that leaves goes at once.
func TestNoDrainingWithDestinationHashing(t *testing.T) {
	s := newStage(t, Options{Scheduler: "dh"})
	w := newTalkers(t, s, 2)
	both, one := w.port(0, 0, 1), w.port(0, 1)
	s.Apply(t, snapshotOf(both))
	s.Apply(t, snapshotOf(one))
	if got := s.destinations(t, both); len(got) != 1 {
		t.Errorf("real servers: got %v, want one", got)
	}
	w.reach(t, "after the endpoint left", "tcp", both.Frontends[0].Addr, w.Hosts[1])
}

// An endpoint that drains may return in the change that gives its Service the scheduler dh.
func TestDrainingEndpointReturnsWithDestinationHashing(t *testing.T) {
	d := newDrainStage(t, Options{}, nil)
	d.Apply(t, snapshotOf(d.second))
	d.stays(t, "after the endpoint left")
	both := new(*d.both)
	both.Annotations = map[string]string{SchedulerAnnotation: "dh"}
	if errs := d.apply(t, snapshotOf(both)); len(errs) > 0 {
		t.Errorf("return with another scheduler: got errors %v, want none", errs)
	}
	d.isAsFresh(t, "after the return")
}

// A change of two Services that fails because of one is undone, and the other one is changed
// alone: its endpoint keeps its connections meanwhile.
func TestDrainAfterUndo(t *testing.T) {
	d := newDrainStage(t, Options{}, nil)
	other := d.port(1, 0, 1)
	d.run(t, "ipvsadm -A -t "+other.Frontends[0].Addr.String())
	err := d.Backend.Apply(t.Context(), d.Applied, snapshotOf(d.second, other))
	if failed, _ := errors.AsType[proxy.PortErrors](err); len(failed) != 1 || failed[other.Name] == nil {
		t.Fatalf("Apply with a foreign virtual server: got error %v, want one that names only %v", err, other.Name)
	}
	d.Applied = d.Applied.Achieved(snapshotOf(d.second, other), err)
	d.stays(t, "after the failed change")
	d.open.asks(t, "after the failed change", d.Hosts[0])
	d.run(t, "ipvsadm -D -t "+other.Frontends[0].Addr.String())
	if errs := d.apply(t, snapshotOf(d.second, other)); len(errs) > 0 {
		t.Errorf("next Apply: got errors %v, want none", errs)
	}
	d.stays(t, "after the next Apply")
	d.open.asks(t, "after the next Apply", d.Hosts[0])
}

// An endpoint that leaves in the change that gives its Service the scheduler dh goes at once, with
// its open connection: dh would refuse the clients of one that drains.
func TestNoDrainingWithNewScheduler(t *testing.T) {
	d := newDrainStage(t, Options{}, nil)
	p := *d.second
	p.Annotations = map[string]string{SchedulerAnnotation: "dh"}
	d.Apply(t, snapshotOf(&p))
	if got := d.destinations(t, d.both); len(got) != 1 {
		t.Errorf("real servers: got %v, want only that which stays", got)
	}
}

// A deleted Service goes at once, an endpoint that drains too, and can return.
func TestDeletedServiceGoesAtOnce(t *testing.T) {
	d := newDrainStage(t, Options{}, nil)
	d.Apply(t, snapshotOf(d.second))
	d.stays(t, "before the deletion")
	d.open.asks(t, "before the deletion", d.Hosts[0])
	d.Apply(t, snapshotOf())
	if got := d.kernelHas(t); len(got) > 0 {
		t.Errorf("after the deletion: in the kernel: got %q, want nothing", got)
	}
	d.awaitIdle(t)
	d.Apply(t, snapshotOf(d.both))
	d.openTo(t, "tcp", d.vip, d.Hosts[0])
	d.isAsFresh(t, "after the return")
}
