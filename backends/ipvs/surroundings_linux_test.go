//go:build ipvs

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// converges applies what other programs have disturbed: at most some Applies find the dataplane
// lost.
func (s *stage) converges(t testing.TB, when string, losses int, want proxy.Snapshot) {
	t.Helper()
	errs := s.apply(t, want)
	for _, err := range errs {
		if !errors.Is(err, proxy.ErrDataplaneLost) && !errors.Is(err, backends.ErrUnavailable) {
			t.Errorf("%s: got error %v, want %v or %v", when, err, proxy.ErrDataplaneLost, backends.ErrUnavailable)
		}
	}
	if len(errs) > losses {
		t.Errorf("%s: got errors %v, want at most %d", when, errs, losses)
	}
}

// isUnchanged compares what is programmed with an earlier dump.
func (s *stage) isUnchanged(t testing.TB, when, before string) {
	t.Helper()
	if diff := cmp.Diff(before, s.dump(t)); diff != "" {
		t.Errorf("%s: objects in the kernel (-before +after):\n%.3000s", when, diff)
	}
}

// The rules keep ip_vs from being unloaded. If another program removes them and all virtual servers,
// and unloads it, only another process can program everything again, with its settings: the error says
// so, and ends the process. While ip_vs cannot be loaded, the errors say so.
func TestUnloaded(t *testing.T) {
	nft := netnstest.NFT(t)
	s := newStage(t, Options{})
	w := newTalkers(t, s, 2)
	p := w.port(0, 0)
	s.Apply(t, snapshotOf(p, localPort(3)))
	before := s.dump(t)
	if out, err := s.try(t, "rmmod ip_vs"); err == nil {
		t.Errorf("rmmod ip_vs while rules use it: got success %s, want an error", out)
	}
	clear := func() {
		t.Helper()
		s.run(t, "ipvsadm -C")
		s.run(t, nft+" flush ruleset")
	}
	clear()
	netnstest.Unload(t, "ip_vs")
	errs := s.apply(t, snapshotOf(w.port(0, 1), localPort(3)))
	if len(errs) < 4 || errors.Is(errs[3], proxy.ErrDataplaneLost) || !errors.Is(errs[3], proxy.ErrUnsupported) || !strings.Contains(errs[3].Error(), "restart") {
		t.Errorf("after ip_vs was unloaded: got errors %v, want %v, which a restart mends", errs, proxy.ErrUnsupported)
	}
	s.startAgain(t)
	s.converges(t, "another endpoint", 0, snapshotOf(w.port(0, 1), localPort(3)))
	w.reach(t, "after ip_vs was unloaded", "tcp", p.Frontends[0].Addr, w.Hosts[1])
	if got := s.run(t, "sysctl -n net.ipv4.vs.conntrack"); got != "1\n" {
		t.Errorf("net.ipv4.vs.conntrack: got %s, want 1", got)
	}
	clear()
	end := netnstest.WithoutModule(t, "ip_vs")
	errs = s.apply(t, snapshotOf(p))
	for _, err := range errs {
		if _, some := errors.AsType[proxy.PortErrors](err); some || !strings.Contains(err.Error(), "module ip_vs") {
			t.Errorf("without ip_vs: got error %v, want one that names the module and no service port", err)
		}
	}
	if len(errs) < 4 {
		t.Errorf("without ip_vs: got success after errors %v, want none", errs)
	}
	end()
	s.startAgain(t)
	s.converges(t, "loaded again", 0, snapshotOf(p, localPort(3)))
	w.reach(t, "loaded again", "tcp", p.Frontends[0].Addr, w.Hosts[0])
	s.isUnchanged(t, "loaded again", before)
}

// Rules keep sets from being destroyed. If another program removes the rules and the sets, the
// backend makes both again: from zero without an error, and a change finds them lost.
func TestSetsDestroyed(t *testing.T) {
	nft := netnstest.NFT(t)
	s := newStage(t, Options{})
	a, b := localPort(1), stagetest.Port(v1.IPv6Protocol, 2, 2)
	want := snapshotOf(a, b)
	s.Apply(t, want)
	before := s.dump(t)
	if _, err := s.try(t, "ipset destroy VIPKIT-CLUSTER-IP"); err == nil {
		t.Error("ipset destroy while rules use the set: got success, want an error")
	}
	for _, sets := range []string{"", " VIPKIT-IPVS-IPS", " VIPKIT-INSIDE", " VIPKIT-6-CLUSTER-IP"} {
		destroy := func() {
			t.Helper()
			s.run(t, nft+" flush ruleset")
			s.run(t, "ipset destroy"+sets)
		}
		destroy()
		s.Applied = proxy.Snapshot{}
		s.converges(t, "from zero after ipset destroy"+sets, 0, want)
		s.isUnchanged(t, "from zero after ipset destroy"+sets, before)
		destroy()
		s.converges(t, "a change after ipset destroy"+sets, 1, snapshotOf(a, stagetest.Port(v1.IPv6Protocol, 2, 1), localPort(5)))
		s.Applied = proxy.Snapshot{} // a change of other sets does not notice
		s.converges(t, "back after ipset destroy"+sets, 0, want)
		s.isUnchanged(t, "back after ipset destroy"+sets, before)
	}
}

// While another program holds the xtables lock, the first Apply fails and names no service port. All
// later ones need no lock: changes and resyncs succeed.
func TestLockHeld(t *testing.T) {
	path := netnstest.OwnXtablesLock(t)
	s := newStage(t, Options{Flavour: Legacy, LockWait: time.Second})
	held, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	testenv.NoError(t, err)
	defer held.Close() //nolint:errcheck // nothing is written
	lock := func(how int) {
		t.Helper()
		testenv.NoError(t, unix.Flock(int(held.Fd()), how))
	}
	a, b := localPort(1), stagetest.Port(v1.IPv6Protocol, 2, 2)
	lock(unix.LOCK_EX)
	err = s.Backend.Apply(t.Context(), proxy.Snapshot{}, snapshotOf(a))
	if _, some := errors.AsType[proxy.PortErrors](err); some || !errors.Is(err, xtables.ErrLocked) {
		t.Errorf("first Apply while the lock is held: got error %v, want %v and no service port", err, xtables.ErrLocked)
	}
	lock(unix.LOCK_UN)
	s.Apply(t, snapshotOf(a))
	lock(unix.LOCK_EX)
	s.Apply(t, snapshotOf(a, b))
	s.Applied = proxy.Snapshot{}
	s.Apply(t, snapshotOf(b))
	lock(unix.LOCK_UN)
	s.isAsFresh(t, "after changes while the lock was held")
}

// An address of a Service that an interface gets, and loses again, serves all the time: it leaves the
// device and comes back, and an open connection goes on.
func TestServiceAddressAtInterface(t *testing.T) {
	s := newStage(t, Options{})
	w := newTalkers(t, s, 1)
	p := w.port(0, 0)
	p.Frontends[0].Kind, p.Frontends[0].Addr = proxy.ExternalIP, addrPort("203.0.113.50", 80)
	vip := p.Frontends[0].Addr
	want := snapshotOf(p, stagetest.Port(v1.IPv4Protocol, 2, 1))
	s.Apply(t, want)
	c := w.openTo(t, "tcp", vip, w.Hosts[0])
	for _, step := range []struct {
		command  string
		atDevice bool
	}{{"add", false}, {"del", true}} {
		s.run(t, "ip addr "+step.command+" 203.0.113.50/32 dev clients")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := s.Backend.Abilities().WaitDrift(ctx); err != nil {
			t.Errorf("%s: WaitDrift: got error %v, want none", step.command, err)
		}
		cancel()
		s.Applied = proxy.Snapshot{}
		s.Apply(t, want)
		if has := strings.Contains(s.run(t, "ip -br addr show dev vipkit-ipvs0"), vip.Addr().String()); has != step.atDevice {
			t.Errorf("%s: address at the device: got %t, want %t", step.command, has, step.atDevice)
		}
		w.reach(t, step.command, "tcp", vip, w.Hosts[0])
		c.asks(t, step.command, w.Hosts[0])
	}
	s.isAsFresh(t, "in the end")
}

// Service ports of all protocols at one address and port come and go in any order, each with its
// virtual servers, marks and entries, and the address stays until the last one has gone.
func TestSharedPort(t *testing.T) {
	s := newStage(t, Options{})
	w := newTalkers(t, s, 2)
	var ports []*proxy.ServicePort
	for i, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} {
		p := w.port(0, i%2, 1)
		p.Name.Protocol, p.Local, p.ExternalLocal = protocol, p.Cluster[:1], true
		external := p.Frontends[0]
		external.Kind, external.Addr = proxy.ExternalIP, addrPort("203.0.113.9", 80)
		external.FromOutside = proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
		p.Frontends = append(p.Frontends, external, stagetest.NodePort(v1.IPv4Protocol, 30_000))
		ports = append(ports, p)
	}
	vip := addrPort("203.0.113.9", 80)
	for _, subset := range []int{7, 6, 7, 5, 7, 3, 1, 2, 4, 3, 6, 0, 7} {
		var some []*proxy.ServicePort
		for i, p := range ports {
			if subset>>i&1 == 1 {
				some = append(some, p)
			}
		}
		when := fmt.Sprintf("subset %03b", subset)
		s.Apply(t, snapshotOf(some...))
		for i, p := range ports {
			if got, want := len(s.destinations(t, p)) > 0, subset>>i&1 == 1; got != want {
				t.Errorf("%s: real servers of %v: got %t, want %t", when, p.Name, got, want)
			}
		}
		for i, network := range []string{"tcp", "udp"} {
			if subset>>i&1 == 1 {
				w.reach(t, when, network, vip, w.Hosts[i])
			}
		}
	}
	all := s.Applied
	s.adopts(t, all)
	before := s.dump(t)
	testenv.NoError(t, s.backend(t).Cleanup(t.Context()))
	s.restart(t)
	s.Apply(t, all)
	s.isUnchanged(t, "after Cleanup and a first Apply", before)
}

// Another program removes all virtual servers before and after any commit of a change, and again and
// again during changes: Apply finds the dataplane lost or succeeds, and the next resync restores all.
func TestClearedDuringChanges(t *testing.T) {
	d := newDisturbed(t, Options{})
	before := snapshotOf(localPort(1), stagetest.Port(v1.IPv4Protocol, 2, 3), stagetest.Port(v1.IPv6Protocol, 3, 2))
	next := snapshotOf(localPort(5), stagetest.Port(v1.IPv4Protocol, 2, 1), stagetest.Port(v1.IPv6Protocol, 3, 4), stagetest.Port(v1.IPv4Protocol, 4, 2))
	d.Apply(t, before)
	fresh := d.dump(t)
	for in := range 4 {
		for _, after := range []bool{false, true} {
			when := fmt.Sprintf("ipvsadm -C at commit %d, after it: %t", in, after)
			d.command, d.in, d.after = "ipvsadm -C", in, after
			for _, err := range d.apply(t, next) {
				if !errors.Is(err, proxy.ErrDataplaneLost) {
					t.Errorf("%s: got error %v, want none or %v", when, err, proxy.ErrDataplaneLost)
				}
			}
			d.command, d.Applied = "", proxy.Snapshot{}
			d.Apply(t, before)
			d.isUnchanged(t, when+", after a resync", fresh)
		}
	}
	stop := make(chan struct{})
	var clearing sync.WaitGroup
	clearing.Go(func() {
		for range 1000 {
			select {
			case <-stop:
				return
			default:
				_, _ = d.try(t, "ipvsadm -C")
			}
		}
	})
	for range 10 {
		d.apply(t, next)
		d.apply(t, before)
	}
	close(stop)
	clearing.Wait()
	d.Applied = proxy.Snapshot{}
	d.Apply(t, before)
	d.isUnchanged(t, "in the end", fresh)
}

// A load-balancer IP that is an address of the node has precedence over a node port of the same
// number, at this address only. Nothing else of either Service changes, and when it goes, the
// node port answers there again.
func TestExactFrontendBesideNodePort(t *testing.T) {
	for _, exact := range []int{0, 2} { // before and after the other one by name
		newNode := func() *stage {
			s := newStage(t, Options{})
			s.run(t, "ip addr add "+nodeAddress().String()+"/32 dev lo")
			return s
		}
		s := newNode()
		const number = 30080
		first, other := atNode(exact, number, 0), atNode(1, 0, number)
		for _, step := range []struct {
			what string
			want proxy.Snapshot
		}{
			{"the node port alone", snapshotOf(other)},
			{"both", snapshotOf(first, other)},
			{"the load balancer alone", snapshotOf(first)},
			{"both again", snapshotOf(first, other)},
			{"the load balancer at another port", snapshotOf(atNode(exact, number+1, 0), other)},
			{"both in one", snapshotOf(atNode(exact, number, number))},
			{"the node port alone again", snapshotOf(other)},
		} {
			s.Apply(t, step.want)
			fresh := newNode()
			fresh.Apply(t, step.want)
			if diff := cmp.Diff(fresh.dump(t), s.dump(t)); diff != "" {
				t.Errorf("%s: objects in the kernel (-after a first Apply +got):\n%.4000s", step.what, diff)
			}
			s.adopts(t, step.want)
		}
		s.Apply(t, snapshotOf(first, other))
		for a, p := range map[netip.AddrPort]*proxy.ServicePort{
			netip.AddrPortFrom(nodeAddress(), number): first, other.Frontends[0].Addr: other, first.Frontends[0].Addr: first,
		} {
			if got := s.run(t, "ipvsadm -Ln -t "+a.String()); !strings.Contains(got, p.Cluster[0].Addr.String()) {
				t.Errorf("virtual server %v: got %q, want the real server %v", a, got, p.Cluster[0].Addr)
			}
		}
	}
}

// A backend of one family leaves what another one has programmed for the other family, until
// Cleanup removes the device.
func TestOneFamily(t *testing.T) {
	s := newStage(t, Options{})
	six := stagetest.Port(v1.IPv6Protocol, 2, 2)
	want := snapshotOf(localPort(1), six)
	s.Apply(t, want)
	s.Options.Families = []v1.IPFamily{v1.IPv4Protocol}
	s.adopts(t, want)
	s.Options.Families = nil
	s.adopts(t, want)
	s.Options.Families = []v1.IPFamily{v1.IPv4Protocol}
	s.restart(t)
	if err := s.backend(t).Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup: got error %v, want none", err)
	}
	if got, err := s.kernel.Services(); err != nil || len(got) != 1 || got[0].Key != serverKeyOf(six) {
		t.Errorf("virtual servers after Cleanup: got %v, error %v, want that of IPv6", got, err)
	}
}
