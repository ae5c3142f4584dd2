//go:build ipvs

package ipvs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Servers of UDP and SCTP, and those with the scheduler dh, go at once. So does all with a
// process that does not drain Services.
func TestServicesThatDoNotDrain(t *testing.T) {
	d := newDrainStage(t, drainServices(), nil)
	d.Apply(t, snapshotOf())
	for i, change := range []func(*proxy.ServicePort){
		func(p *proxy.ServicePort) { p.Name.Protocol = v1.ProtocolUDP },
		func(p *proxy.ServicePort) { p.Name.Protocol = v1.ProtocolSCTP },
		func(p *proxy.ServicePort) { p.Annotations = map[string]string{SchedulerAnnotation: "dh"} },
	} {
		p := d.port(1+i, 0, 1)
		p.Name.Port = "other"
		if change(p); i < 2 {
			p.Frontends[0].Addr = d.vip // the address stays because of the port of TCP
		}
		d.Apply(t, snapshotOf(p))
		if got := len(d.destinations(t, p)); got != 2 {
			t.Errorf("%v: real servers: got %d, want 2", p.Name, got)
		}
		d.Apply(t, snapshotOf())
		if got := d.run(t, "ipvsadm -Sn"); strings.Count(got, "-A") != 1 || !strings.Contains(got, "-A -t "+d.vip.String()) {
			t.Errorf("%v: virtual servers after the deletion: got %q, want only that of %v", p.Name, got, d.vip)
		}
	}
	c, err := d.Client.Dial(t.Context(), "udp", d.vip.String())
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, c)
	testenv.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, sent := c.Write([]byte("who\n"))
	_, received := c.Read(make([]byte, 9))
	if !errors.Is(errors.Join(sent, received), unix.ECONNREFUSED) {
		t.Errorf("UDP: got errors %v and %v, want %v", sent, received, unix.ECONNREFUSED)
	}
	d.open.asks(t, "after other deletions", d.Hosts[0])
	d.Options.DrainServices = false
	d.restart(t)
	d.Apply(t, snapshotOf())
	d.isGone(t)
	if got := d.kernelHas(t); len(got) > 0 {
		t.Errorf("in the kernel: got %q, want nothing", got)
	}
}

// Services of IPv6 drain too.
func TestDrainServiceIPv6(t *testing.T) {
	d := newDrainStage(t, drainServices(), nil)
	d.addIPv6(t)
	p := stagetest.Port(v1.IPv6Protocol, 1, 0)
	host := stagetest.HostIP(v1.IPv6Protocol, 2)
	p.Cluster = append(p.Cluster, stagetest.Endpoint(v1.IPv6Protocol, 2, talkPort))
	vip := p.Frontends[0].Addr
	d.Apply(t, snapshotOf(p))
	open := d.openTo(t, "tcp", vip, host)
	inside := d.insideTo(t, vip, host)
	d.Apply(t, snapshotOf())
	d.adopts(t, snapshotOf())
	for when, c := range map[string]*conversation{"client": open, "node": inside} {
		c.asks(t, "after the deletion, "+when, host)
	}
	d.refuses(t, "after the deletion", vip)
	d.isAsFresh(t, "after the deletion")
	d.Apply(t, snapshotOf(p))
	open.asks(t, "after the return", host)
	d.openTo(t, "tcp", vip, host).reset()
	d.Apply(t, snapshotOf())
	for _, c := range []*conversation{open, inside, d.open} {
		c.reset()
	}
	d.awaitNothing(t, "after all connections ended")
}

// addIPv6 gives the client, the node and the server addresses of IPv6.
func (d *drainStage) addIPv6(t *testing.T) {
	t.Helper()
	near, far := netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("fd00:10::1/64")
	everywhere := netip.MustParsePrefix("::/0")
	err := errors.Join(
		d.NS.AddAddress("clients", near), d.NS.AddAddress("servers", far),
		d.Client.AddAddress("eth0", netip.MustParsePrefix("2001:db8::2/64")),
		d.Server.AddAddress("eth0", netip.PrefixFrom(stagetest.HostIP(v1.IPv6Protocol, 2), 64)),
		d.Client.AddRoute(netns.Route{To: everywhere, Link: "eth0", Via: near.Addr()}),
		d.Server.AddRoute(netns.Route{To: everywhere, Link: "eth0", Via: far.Addr()}))
	testenv.NoError(t, err)
}

// Cleanup removes Services that drain, unless the options say that they do.
func TestCleanupWhileServicesDrain(t *testing.T) {
	d := newDrainStage(t, drainServices(), nil)
	d.Apply(t, snapshotOf())
	d.Options.DrainServices = false
	d.restart(t)
	if err := d.Backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	if got := d.run(t, "ipvsadm -Sn") + d.run(t, "ipset save"); got != "" {
		t.Errorf("after Cleanup: got %q, want nothing", got)
	}
	if _, err := d.try(t, "ip link show dev vipkit-ipvs0"); err == nil {
		t.Error("after Cleanup: the device exists")
	}
}

// What another program removes while a Service drains is no obstacle: an Apply from zero leaves
// as much as a first one, and the Service can return.
func TestDrainServiceDisturbed(t *testing.T) {
	s := newStage(t, drainServices())
	w := newTalkers(t, s, 2)
	p, other := w.port(0, 0, 1), localPort(1)
	other.Frontends = other.Frontends[:2]
	s.Apply(t, snapshotOf())
	empty := s.dump(t)
	s.Apply(t, snapshotOf(p, other))
	served := s.dump(t)
	for _, command := range []string{
		"ipvsadm -C", "ipset flush", "ipset flush VIPKIT-IPVS-SERVERS", "ipset flush VIPKIT-IPVS-IPS", "ipset flush VIPKIT-MARKS", "ip link del vipkit-ipvs0",
		"ipvsadm -E -t 10.128.0.1:80 -s wlc", "ipvsadm -d -t 10.128.0.1:80 -r 10.0.0.2:7777", "ip addr del 10.128.0.1/32 dev vipkit-ipvs0",
	} {
		open := w.openTo(t, "tcp", p.Frontends[0].Addr, w.Hosts[1])
		s.Apply(t, snapshotOf())
		s.run(t, command)
		s.Applied = proxy.Snapshot{}
		if errs := s.apply(t, snapshotOf()); len(errs) > 0 {
			t.Errorf("%s: Apply from zero: got errors %v, want none", command, errs)
		}
		if diff := cmp.Diff(empty, s.dump(t)); diff != "" {
			t.Errorf("%s: from zero: objects in the kernel (-without Services +got):\n%.3000s", command, diff)
		}
		if errs := s.apply(t, snapshotOf(p, other)); len(errs) > 0 {
			t.Errorf("%s: return: got errors %v, want none", command, errs)
		}
		w.openTo(t, "tcp", p.Frontends[0].Addr, w.Hosts[1]).reset()
		open.reset()
	}
	s.Applied = proxy.Snapshot{}
	s.Apply(t, snapshotOf(p, other))
	if diff := cmp.Diff(served, s.dump(t)); diff != "" {
		t.Errorf("in the end: objects in the kernel (-before +got):\n%.3000s", diff)
	}
	s.Apply(t, snapshotOf())
	await(t, "nothing in the kernel", func() bool { return len(s.kernelHas(t)) == 0 })
}

// Random histories in which Services drain for ever, or only for a moment, with faults and
// restarts: the state is that of a first Apply, and a restart writes nothing.
func TestDrainServicesRandom(t *testing.T) {
	for _, forever := range []bool{true, false} {
		t.Run(fmt.Sprintf("forever=%t", forever), func(t *testing.T) {
			h := newDrainHistory(t, forever)
			most := 0
			for step := 0; step < 30 && !t.Failed(); step++ {
				h.step(t, fmt.Sprintf("step %d", step))
				most = max(most, h.retained(t))
				if step%10 == 9 {
					h.isAsFresh(t, fmt.Sprintf("step %d", step))
				}
				if step%5 == 4 {
					before := h.dump(t)
					h.adopts(t, h.Applied)
					if diff := cmp.Diff(before, h.dump(t)); diff != "" {
						t.Errorf("step %d: objects in the kernel (-before a restart +after it):\n%.3000s", step, diff)
					}
				}
			}
			if forever && most < 3 {
				t.Errorf("virtual servers that drained at once: got %d, want at least 3", most)
			}
			h.backend(t).target.drainer.closed = false
			h.Applied = proxy.Snapshot{}
			h.Apply(t, snapshotOf())
			await(t, "nothing in the kernel", func() bool { return len(h.kernelHas(t)) == 0 })
		})
	}
}

// drainHistory is a random history of a few Services.
type drainHistory struct {
	*stage
	r      *rand.Rand
	faults *stagetest.Disturbance
	world  [5]*proxy.ServicePort
}

// newDrainHistory makes one; with forever, no goroutine removes what drains.
func newDrainHistory(t *testing.T, forever bool) *drainHistory {
	t.Helper()
	h := &drainHistory{stage: newStage(t, drainServices()), r: testenv.Random(t), faults: &stagetest.Disturbance{
		Refusals: []error{errors.New("refused")}, Unknown: proxy.ErrDataplaneLost, Flush: func() {},
	}}
	h.New = func(o Options) (proxy.Backend, error) {
		b, err := newFaulty(o, h.faults.Around)
		if err == nil {
			b.target.drainer.closed = forever
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	}
	h.restart(t)
	return h
}

// step applies a change of some Services, perhaps with a fault.
func (h *drainHistory) step(t *testing.T, when string) {
	t.Helper()
	for range 1 + h.r.IntN(3) {
		i := h.r.IntN(len(h.world))
		if h.world[i] = nil; h.r.IntN(3) > 0 {
			h.world[i] = stagetest.RandomPort(h.r, i)
		}
	}
	ports := slices.DeleteFunc(slices.Clone(h.world[:]), func(p *proxy.ServicePort) bool { return p == nil })
	fault := h.r.IntN(4) == 0
	h.faults.Set(h.r, fault)
	errs := h.apply(t, snapshotOf(ports...))
	if h.faults.Set(h.r, false); len(errs) > 3 || len(errs) > 0 && !fault {
		t.Errorf("%s, fault: %t: got errors %v, want success", when, fault, errs)
	}
}

// retained returns how many virtual servers are retained.
func (h *drainHistory) retained(t *testing.T) int {
	t.Helper()
	b := h.backend(t)
	b.target.mu.Lock()
	defer b.target.mu.Unlock()
	return len(b.target.drainer.retained.servers)
}
