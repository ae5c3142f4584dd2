//go:build ipvs

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// drainServices are options with which whole Services drain.
func drainServices() Options { return Options{DrainServices: true} }

// drains requires that a service port has only real servers that drain, and returns until when.
func (d *drainStage) drains(t *testing.T, when string) (until uint32) {
	t.Helper()
	all := d.destinations(t, d.both)
	for a, x := range all {
		if x.Weight != 0 || x.Upper == 0 {
			t.Errorf("%s: real server %v: got %+v, want weight 0 and a deadline", when, a, x)
		}
		until = x.Upper
	}
	if len(all) == 0 {
		t.Errorf("%s: real servers: got none, want at least %v", when, d.leaving)
	}
	return until
}

// refuses requires that new connections from the client and from the node are refused at once.
func (d *drainStage) refuses(t *testing.T, when string, to netip.AddrPort) {
	t.Helper()
	for name, from := range map[string]*netns.NS{"client": d.Client, "node": d.NS} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		c, err := from.Dial(ctx, "tcp", to.String())
		cancel()
		if err == nil {
			_ = c.Close()
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: new connection of the %s to %v: got error %v, want %v", when, name, to, err, unix.ECONNREFUSED)
		}
	}
}

// kernelHas returns virtual servers, addresses of the device and entries of sets, as programs
// show them.
func (s *stage) kernelHas(t *testing.T) (lines []string) {
	t.Helper()
	lines = strings.Split(s.run(t, "ipvsadm -Sn"), "\n")
	lines = append(lines, strings.Split(s.run(t, "ip -o addr show dev vipkit-ipvs0"), "\n")...)
	for line := range strings.Lines(s.run(t, "ipset save")) {
		if strings.HasPrefix(line, "add ") {
			lines = append(lines, line)
		}
	}
	return slices.DeleteFunc(lines, func(l string) bool { return l == "" })
}

// awaitNothing waits until the kernel has nothing of Services.
func (d *drainStage) awaitNothing(t *testing.T, when string) {
	t.Helper()
	d.awaitGone(t, when)
	if got := d.kernelHas(t); len(got) > 0 {
		t.Errorf("%s: in the kernel: got %q, want nothing", when, got)
	}
	b := d.backend(t)
	b.target.mu.Lock()
	defer b.target.mu.Unlock()
	if r := b.target.drainer.retained; len(r.servers)+len(r.others)+len(r.at) > 0 {
		t.Errorf("%s: retained: got %v, want nothing", when, r)
	}
}

// The connections of a deleted Service go on, over a restart too, and new ones are refused.
// When they have ended, nothing is left. The dump is as without the Service.
func TestDrainService(t *testing.T) {
	d := newDrainStage(t, drainServices(), nil)
	host, err := d.NS.Listen(t.Context(), "tcp", "0.0.0.0:80") // must never be reached
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, host)
	d.Apply(t, snapshotOf())
	until := d.drains(t, "after the deletion")
	d.open.asks(t, "after the deletion", d.Hosts[0])
	d.refuses(t, "after the deletion", d.vip)
	d.isAsFresh(t, "while the Service drains")
	d.Applied = proxy.Snapshot{}
	await(t, "the removal of the real server without connections", func() bool { return len(d.destinations(t, d.both)) == 1 })
	before, had := d.Operations(t), d.kernelHas(t)
	d.Apply(t, snapshotOf())
	if got := d.Operations(t) - before; got != 0 {
		t.Errorf("operations of a resync: got %d, want 0", got)
	}
	d.Options.DrainTimeout = time.Hour
	d.adopts(t, snapshotOf())
	if got := d.drains(t, "after a restart"); got != until {
		t.Errorf("deadline after a restart: got %d, want %d", got, until)
	}
	if got := d.kernelHas(t); !slices.Equal(got, had) {
		t.Errorf("after a restart, in the kernel: got %q, want %q", got, had)
	}
	d.open.asks(t, "after a restart", d.Hosts[0])
	d.refuses(t, "after a restart", d.vip)
	d.open.reset()
	d.awaitNothing(t, "after the connection ended")
}

// A virtual server that drains and gets real servers that do not, as after a change of which the
// outcome is not known, stays until the next Apply, which knows what to do with it.
func TestDrainServiceThatServesAgain(t *testing.T) {
	d := newDrainStage(t, drainServices(), nil)
	d.Apply(t, snapshotOf())
	for _, real := range d.real {
		d.run(t, fmt.Sprintf("ipvsadm -e -t %v -r %v -m -w 1 -x 0", d.vip, real))
	}
	d.awaitIdle(t)
	d.open.asks(t, "after another program changed the weights", d.Hosts[0])
	d.Applied = proxy.Snapshot{}
	d.Apply(t, snapshotOf())
	d.drains(t, "after an Apply from zero")
	d.open.asks(t, "after an Apply from zero", d.Hosts[0])
	d.open.reset()
	d.awaitNothing(t, "after the connection ended")
}

// Draining of a Service ends at the deadline that the first process has set.
func TestDrainServiceDeadline(t *testing.T) {
	d := newDrainStage(t, Options{DrainServices: true, DrainTimeout: 4 * time.Second}, nil)
	d.Apply(t, snapshotOf())
	until := d.drains(t, "after the deletion")
	d.Options.DrainTimeout = time.Hour
	d.adopts(t, snapshotOf())
	d.awaitNothing(t, "after the deadline")
	if now := uptime(); now < until {
		t.Errorf("removed at second %d, want not before %d", now, until)
	}
	if got, err := d.open.ask(); err == nil {
		t.Errorf("open connection after the deadline: got an answer of %v, want an error", got)
	}
}

// A Service that returns while it drains keeps its connections, whatever has happened
// meanwhile; its affinity and its scheduler may be other ones.
func TestDrainServiceReturns(t *testing.T) {
	for name, meanwhile := range map[string]func(t *testing.T, d *drainStage){
		"at once":         func(*testing.T, *drainStage) {},
		"after a restart": func(t *testing.T, d *drainStage) { t.Helper(); d.restart(t) },
		"after a failure": func(t *testing.T, d *drainStage) {
			t.Helper()
			other := d.port(1, 0, 1)
			d.run(t, "ipvsadm -A -t "+other.Frontends[0].Addr.String())
			want := snapshotOf(d.both, other)
			if err := d.backend(t).target.Commit(t.Context(), additions(d.backend(t), want)); err == nil {
				t.Error("commit with a foreign virtual server: got no error, want one")
			}
			d.drains(t, "after a failure")
			d.refuses(t, "after a failure", d.vip)
			d.open.asks(t, "after a failure", d.Hosts[0])
			d.run(t, "ipvsadm -D -t "+other.Frontends[0].Addr.String())
		},
		"with affinity": func(_ *testing.T, d *drainStage) {
			d.both = new(*d.both)
			d.both.Affinity = affinity.Config{Timeout: time.Hour}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDrainStage(t, drainServices(), nil)
			d.Apply(t, snapshotOf())
			meanwhile(t, d)
			d.Apply(t, snapshotOf(d.both))
			for a, x := range d.destinations(t, d.both) {
				if want := (ipvs.Destination{Addr: a, Weight: 1}); x.Destination != want {
					t.Errorf("real server that returned: got %+v, want %+v", x.Destination, want)
				}
			}
			d.open.asks(t, "after the return", d.Hosts[0])
			if name != "with affinity" {
				d.openTo(t, "tcp", d.vip, d.Hosts[0]).reset()
				d.openTo(t, "tcp", d.vip, d.Hosts[1]).reset()
			}
			d.isAsFresh(t, "after the return")
			d.adopts(t, snapshotOf(d.both))
			d.Apply(t, snapshotOf(d.second))
			d.Apply(t, snapshotOf())
			d.open.asks(t, "after another deletion", d.Hosts[0])
			d.open.reset()
			d.awaitNothing(t, "after the connection ended")
		})
	}
}

// additions returns the operations that make the objects of a snapshot, in order.
func additions(b *backend, s proxy.Snapshot) []op {
	var all []object
	for p := range s.All() {
		all = b.target.Render(s.Node(), p, all)
	}
	ops := stagetest.Additions(all)
	slices.SortStableFunc(ops, func(a, b op) int { return a.Key.Rank() - b.Key.Rank() })
	return ops
}

// Of two ports at one address, the deleted one drains and the other one serves. The address goes
// with the last one.
func TestDrainOnePortOfAnAddress(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%t", restart), func(t *testing.T) {
			d := newDrainStage(t, drainServices(), nil)
			other := d.port(1, 1)
			at := netip.AddrPortFrom(d.vip.Addr(), 81)
			other.Frontends[0].Addr = at
			d.Apply(t, snapshotOf(d.both, other))
			d.Apply(t, snapshotOf(other))
			if restart {
				d.adopts(t, snapshotOf(other))
			}
			d.open.asks(t, "after the deletion of a port", d.Hosts[0])
			d.refuses(t, "after the deletion of a port", d.vip)
			d.reach(t, "after the deletion of a port", "tcp", at, d.Hosts[1])
			d.isAsFresh(t, "after the deletion of a port")
			last := d.openTo(t, "tcp", at, d.Hosts[1])
			d.Apply(t, snapshotOf())
			last.asks(t, "after the deletion of both ports", d.Hosts[1])
			d.open.reset()
			d.awaitFewer(t)
			last.asks(t, "after the first port has drained", d.Hosts[1])
			d.Apply(t, snapshotOf(other))
			d.reach(t, "after the return of a port", "tcp", at, d.Hosts[1])
			d.Apply(t, snapshotOf())
			last.reset()
			d.awaitNothing(t, "after all connections ended")
		})
	}
}

// awaitFewer waits until the real servers of the first service port are gone.
func (d *drainStage) awaitFewer(t *testing.T) {
	t.Helper()
	await(t, "the removal of "+d.vip.String(), func() bool { return len(d.destinations(t, d.both)) == 0 })
}

// Connections from inside and from outside to an external address, which have virtual servers
// of their own, and those to a node port go on when the Service is deleted.
func TestDrainServiceWithMarks(t *testing.T) {
	d := newDrainStage(t, drainServices(), func(p *proxy.ServicePort) {
		all := localPort(0).Frontends
		p.Frontends = append(p.Frontends, all[1:]...)
		p.ExternalLocal = true
		p.Local = p.Cluster[:1]
	})
	served := d.dump(t)
	fresh := newStage(t, d.Options)
	fresh.Apply(t, snapshotOf())
	empty := fresh.dump(t)
	external, nodePort := d.both.Frontends[1].Addr, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 30_000)
	outside := d.openTo(t, "tcp", external, d.Hosts[0])
	viaNode := d.openTo(t, "tcp", nodePort, d.Hosts[0])
	inside := d.insideTo(t, external, d.Hosts[1])
	check := func(when string) {
		t.Helper()
		for _, c := range []*conversation{d.open, outside, viaNode} {
			c.asks(t, when, d.Hosts[0])
		}
		inside.asks(t, when, d.Hosts[1])
	}
	for _, restart := range []bool{false, true} {
		when := fmt.Sprintf("restart: %t", restart)
		d.Apply(t, snapshotOf())
		if restart {
			d.adopts(t, snapshotOf())
		}
		check(when + ", after the deletion")
		d.refuses(t, when+", after the deletion", external)
		d.refuses(t, when+", after the deletion", nodePort)
		if diff := cmp.Diff(empty, d.dump(t)); diff != "" {
			t.Errorf("%s, after the deletion: objects in the kernel (-without the Service +got):\n%.3000s", when, diff)
		}
		d.Apply(t, snapshotOf(localPort(1))) // has another mark
		d.Apply(t, snapshotOf(d.both))
		check(when + ", after the return")
		d.insideTo(t, external, d.Hosts[1]).reset()
		await(t, "the end of the other Service", func() bool { return len(d.destinations(t, localPort(1))) == 0 })
		if diff := cmp.Diff(served, d.dump(t)); diff != "" {
			t.Errorf("%s, after the return: objects in the kernel (-before +got):\n%.3000s", when, diff)
		}
	}
	d.Apply(t, snapshotOf())
	for _, c := range []*conversation{d.open, outside, viaNode} {
		c.reset()
	}
	d.awaitFewer(t)
	inside.asks(t, "after all other connections ended", d.Hosts[1])
	d.refuses(t, "after all other connections ended", external)
	inside.reset()
	d.awaitNothing(t, "after all connections ended")
}

// insideTo opens connections from the node until one reaches a server.
func (d *drainStage) insideTo(t *testing.T, to netip.AddrPort, server netip.Addr) *conversation {
	t.Helper()
	fromNode := *d.Row
	fromNode.Client = d.NS
	return (&talkers{Row: &fromNode}).openTo(t, "tcp", to, server)
}

// The connections to the last endpoint go on when it leaves, whether new ones are rejected or
// dropped then.
func TestDrainLastEndpoint(t *testing.T) {
	d := newDrainStage(t, drainServices(), nil)
	inside := d.insideTo(t, d.vip, d.Hosts[1])
	none := new(*d.both)
	none.Cluster = nil
	none.Frontends = slices.Clone(d.both.Frontends)
	for _, action := range []proxy.Action{proxy.Reject, proxy.Drop} {
		f := &none.Frontends[0]
		f.FromInside, f.FromOutside = proxy.TrafficRoute{Action: action}, proxy.TrafficRoute{Action: action}
		d.Apply(t, snapshotOf(none))
		when := "without endpoints, new connections: " + action.String()
		d.drains(t, when)
		d.open.asks(t, when, d.Hosts[0])
		inside.asks(t, when+", from the node", d.Hosts[1])
		if action == proxy.Reject {
			d.refuses(t, when, d.vip)
		}
		d.isAsFresh(t, when)
		d.Apply(t, snapshotOf(d.both))
		d.open.asks(t, "with endpoints again", d.Hosts[0])
	}
	d.Options.DrainServices = false
	d.restart(t)
	d.Apply(t, snapshotOf(none))
	d.isGone(t)
}
