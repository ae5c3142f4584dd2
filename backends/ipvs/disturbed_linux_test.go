//go:build ipvs

package ipvs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// disturbed is a stage that runs a command of another program before or after a commit.
type disturbed struct {
	*stage
	command string
	// in is how many commits have nothing before; after says that the command follows one.
	in    int
	after bool
}

func newDisturbed(t *testing.T, o Options) *disturbed {
	t.Helper()
	d := &disturbed{stage: newStage(t, o)}
	d.New = func(o Options) (proxy.Backend, error) {
		b, err := newFaulty(o, func(commit func() error) error { return d.around(t, commit) })
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	}
	d.restart(t)
	return d
}

func (d *disturbed) around(t *testing.T, commit func() error) error {
	command := d.command
	if d.in--; command == "" || d.in >= 0 {
		return commit()
	}
	d.command = ""
	if d.after {
		err := commit()
		_, _ = d.try(t, command) // fails if its object does not exist
		return err
	}
	_, _ = d.try(t, command)
	return commit()
}

// localPort returns service port i with node ports, whose connections from inside and from
// outside have other endpoints.
func localPort(i int) *proxy.ServicePort {
	p := stagetest.Port(v1.IPv4Protocol, i, 2)
	p.Local, p.ExternalLocal = p.Cluster[:1], true
	f := p.Frontends[0]
	f.Kind, f.Addr = proxy.ExternalIP, addrPort("203.0.113.9", 1000+i)
	f.FromOutside = proxy.TrafficRoute{Action: proxy.Forward, Pool: proxy.PoolLocal}
	p.Frontends = append(p.Frontends, f, stagetest.NodePort(v1.IPv4Protocol, uint16(30_000+i)))
	return p
}

// Whatever another program removes or changes, an Apply that knows nothing repairs it, and
// names no service port. So does the Apply after one that met the change.
func TestRepair(t *testing.T) {
	d := newDisturbed(t, Options{})
	ports := []*proxy.ServicePort{localPort(1), stagetest.Port(v1.IPv4Protocol, 2, 3), stagetest.Port(v1.IPv6Protocol, 3, 2)}
	want := snapshotOf(ports...)
	d.Apply(t, want)
	fresh := d.dump(t)
	more := snapshotOf(append(ports[:2:2], stagetest.Port(v1.IPv6Protocol, 3, 1), stagetest.Port(v1.IPv4Protocol, 4, 1), localPort(5))...)
	for _, command := range slices.Concat(tampers(ports[1]), []string{
		"ip link del vipkit-ipvs0", "ipset flush", "ipset flush VIPKIT-IPVS-SERVERS", "ipset flush VIPKIT-MARKS", "ipset flush VIPKIT-INSIDE",
	}) {
		d.run(t, command)
		d.Applied = proxy.Snapshot{}
		if errs := d.apply(t, want); len(errs) > 0 {
			t.Errorf("%s: Apply from zero: got errors %.500v, want none", command, errs)
		}
		if diff := cmp.Diff(fresh, d.dump(t)); diff != "" {
			t.Fatalf("%s: after an Apply from zero (-before +after):\n%.3000s", command, diff)
		}
		// An added real server drains, and cannot be added again until it is removed.
		await(t, command+": the end of draining", func() bool { return !strings.Contains(d.run(t, "ipvsadm -Sn"), "-w 0") })
		d.run(t, command)
		errs := d.apply(t, more)
		for _, err := range errs {
			if !errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("%s: Apply of a change: got error %.500v, want none or %v", command, err, proxy.ErrDataplaneLost)
			}
		}
		if len(errs) > 1 {
			t.Errorf("%s: Apply of a change: got errors %.500v, want at most one", command, errs)
		}
		d.Applied = proxy.Snapshot{}
		if errs := d.apply(t, want); len(errs) > 0 {
			t.Errorf("%s: back, from zero: got errors %.500v, want none", command, errs)
		}
		if diff := cmp.Diff(fresh, d.dump(t)); diff != "" {
			t.Fatalf("%s: after a change and back (-before +after):\n%.3000s", command, diff)
		}
	}
}

// tampers are commands of other programs that remove or change what a service port needs.
func tampers(p *proxy.ServicePort) []string {
	vip, real := p.Frontends[0].Addr, p.Cluster[0].Addr.String()
	entry := vip.Addr().String() + ",tcp:80"
	return []string{
		"ipvsadm -C",
		"ipvsadm -D -t " + vip.String(),
		"ipvsadm -E -t " + vip.String() + " -s wlc",
		"ipvsadm -E -t " + vip.String() + " -s rr -p 60",
		"ipvsadm -d -t " + vip.String() + " -r " + real,
		"ipvsadm -e -t " + vip.String() + " -r " + real + " -m -w 7",
		"ipvsadm -e -t " + vip.String() + " -r " + real + " -m -w 0",
		"ipvsadm -e -t " + vip.String() + " -r " + real + " -m -w 1 -x 9",
		"ipvsadm -a -t " + vip.String() + " -r 10.99.0.1:99 -m -w 1",
		"ipvsadm -a -t " + vip.String() + " -r [fd00:99::1]:" + fmt.Sprint(vip.Port()) + " -i -w 0",
		"ipset del VIPKIT-IPVS-SERVERS " + entry,
		"ipset del VIPKIT-CLUSTER-IP " + entry,
		"ipset add VIPKIT-DROP-POD " + entry,
		"ipset flush VIPKIT-IPVS-IPS",
		"ip addr del " + vip.Addr().String() + "/32 dev vipkit-ipvs0",
		"ip addr add 10.128.200.200/32 dev vipkit-ipvs0",
		"ip addr add 10.128.200.201/24 dev vipkit-ipvs0",
		"ip addr add 10.128.200.202 peer 10.128.200.203 dev vipkit-ipvs0",
		"ip addr add fd00:128::200/64 dev vipkit-ipvs0 nodad",
	}
}

// Other programs disturb many random changes, between and during them. In the end, an Apply
// that knows nothing gives what a first one gives.
func TestRandomDisturbances(t *testing.T) {
	r := testenv.Random(t)
	d := newDisturbed(t, Options{})
	world := make([]*proxy.ServicePort, 6)
	for step := range 60 {
		for range 1 + r.IntN(3) {
			i := r.IntN(len(world))
			world[i] = nil
			if r.IntN(4) > 0 {
				world[i] = stagetest.RandomPort(r, i)
			}
		}
		ports := slices.DeleteFunc(slices.Clone(world), func(p *proxy.ServicePort) bool { return p == nil })
		command := d.disturb(r)
		if r.IntN(3) == 0 {
			_, _ = d.try(t, command)
			d.command = ""
		}
		errs := d.apply(t, snapshotOf(ports...))
		for _, err := range errs {
			// Foreign servers in the way name ports; everything else is lost.
			if _, some := errors.AsType[proxy.PortErrors](err); !some && !errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("step %d, %s: got error %v, want %v", step, command, err, proxy.ErrDataplaneLost)
			}
		}
		if len(errs) > 3 {
			t.Errorf("step %d, %s: got errors %v, want success", step, command, errs)
		}
		if step%12 == 11 {
			d.command = ""
			d.Applied = proxy.Snapshot{}
			if errs := d.apply(t, snapshotOf(ports...)); len(errs) > 0 {
				t.Errorf("step %d, %s: from zero: got errors %v, want none", step, command, errs)
			}
			d.isAsFresh(t, "after "+command)
			if r.IntN(2) == 0 {
				d.adopts(t, d.Applied)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// disturb chooses what another program does, and when.
func (d *disturbed) disturb(r *rand.Rand) string {
	port := stagetest.RandomPort(r, r.IntN(6))
	for len(port.Cluster) == 0 {
		port = stagetest.RandomPort(r, r.IntN(6))
	}
	// After a server is edited, only its entry shows whose it is: no test may lose both.
	single := slices.DeleteFunc(tampers(port), func(c string) bool { return strings.HasPrefix(c, "ipvsadm -E") })
	all := append(single, "ip link del vipkit-ipvs0", "ipset flush", "ipset flush VIPKIT-INSIDE", "ipset flush VIPKIT-MARKS", "ipset flush VIPKIT-IPVS-SERVERS")
	d.command, d.in, d.after = all[r.IntN(len(all))], r.IntN(4), r.IntN(2) == 0
	return d.command
}

// A set that is full has no effect on other service ports: the ones without room are named,
// and are programmed when there is room.
func TestFullSets(t *testing.T) {
	s := newStage(t, Options{})
	s.backend(t).target.maxEntries = 3
	var ports []*proxy.ServicePort
	for i := range 5 {
		ports = append(ports, stagetest.Port(v1.IPv4Protocol, i, 1))
	}
	s.Apply(t, snapshotOf(ports[:2]...))
	for _, old := range []proxy.Snapshot{snapshotOf(ports[:2]...), {}} {
		s.Applied = old
		want := snapshotOf(ports...)
		err := s.Backend.Apply(t.Context(), s.Applied, want)
		failed, some := errors.AsType[proxy.PortErrors](err)
		if !some || len(failed) != 2 || !strings.Contains(err.Error(), "full") {
			t.Fatalf("5 service ports with room for 3: got error %v, want one that names 2 of them", err)
		}
		s.Applied = s.Applied.Achieved(want, err)
		for _, p := range ports {
			_, refused := failed[p.Name]
			if served := len(s.destinations(t, p)) == 1; served == refused {
				t.Errorf("%v: served: got %t, want %t", p.Name, served, !refused)
			}
		}
	}
	s.Applied = proxy.Snapshot{}
	next := snapshotOf(ports[2:]...)
	if errs := s.apply(t, next); len(errs) > 2 {
		t.Errorf("as many as there is room: got errors %v, want success", errs)
	}
	for _, p := range ports[2:] {
		if got := len(s.destinations(t, p)); got != 1 {
			t.Errorf("%v: real servers: got %d, want 1", p.Name, got)
		}
	}
}

// If the rules of one family are refused for another node, those of the other family are written:
// what the kernel has is unknown, and an Apply from zero for the former node restores all.
func TestRulesRefusedForAnotherNode(t *testing.T) {
	s := newStage(t, Options{})
	refusals, commits := 0, 0
	err := s.NS.Do(func() error {
		return s.backend(t).disturbRules(func(commit func() error) error {
			if commits++; refusals > 0 && commits > 1 {
				refusals--
				return backends.ErrUnavailable
			}
			return commit()
		})
	})
	testenv.NoError(t, err)
	before := snapshotOf(stagetest.Port(v1.IPv4Protocol, 1, 2), stagetest.Port(v1.IPv6Protocol, 2, 2))
	s.Apply(t, before)
	node := *stagetest.Node()
	node.LocalTraffic = proxy.LocalTraffic{Sources: snapshots.Prefixes("10.55.0.0/16", "fd55::/16")}
	refusals, commits = 1, 0
	if err := s.Backend.Apply(t.Context(), before, proxy.NewSnapshot(&node, slices.Collect(before.All())...)); !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("Apply with refused rules of the second family: got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
	if refusals > 0 {
		t.Fatal("no commit was refused")
	}
	s.Applied = proxy.Snapshot{}
	s.Apply(t, before)
	s.isAsFresh(t, "back from another node")
}

// The kernel may leave virtual servers out of a list while others change in other namespaces. A Service
// whose virtual server was not listed stays as it is, and the next Apply finds all of it.
func TestShortenedList(t *testing.T) {
	s := newStage(t, Options{})
	p, other := stagetest.Port(v1.IPv4Protocol, 1, 2), stagetest.Port(v1.IPv4Protocol, 2, 2)
	want := snapshotOf(p, other)
	s.Apply(t, want)
	before := s.dump(t)
	skip := true
	s.New = func(o Options) (proxy.Backend, error) {
		b, err := newSkipping(o, func(k key) bool { return skip && k.kind == kindServer && k.addr == p.Frontends[0].Addr })
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
		}
		return b, err
	}
	s.restart(t)
	if err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, want); !errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("Apply with a list that lacks a virtual server: got error %v, want %v", err, proxy.ErrDataplaneLost)
	}
	s.isUnchanged(t, "after an Apply with a list that lacks a virtual server", before)
	skip = false
	s.Apply(t, want)
	s.isUnchanged(t, "after the next Apply", before)
}
