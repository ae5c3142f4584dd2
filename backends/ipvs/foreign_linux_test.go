//go:build ipvs

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func addrPort(a string, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(a), uint16(port))
}

// foreign returns the virtual servers of the tests' other program, as ipvsadm lists them.
func (s *stage) foreign(t testing.TB) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(s.run(t, "ipvsadm -Sn")) {
		if strings.Contains(line, "192.0.2.") || strings.Contains(line, "-s wlc") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func (s *stage) isUntouched(t testing.TB, when, before string) {
	t.Helper()
	if diff := cmp.Diff(before, s.foreign(t)); diff != "" {
		t.Errorf("%s: foreign virtual servers (-before +after):\n%s", when, diff)
	}
}

// A virtual server of another program at the address and port of a Service stays as it is, and the
// service port is named. All others are served, also if the same change replaces something.
func TestForeignServerInTheWay(t *testing.T) {
	s := newStage(t, Options{})
	blocked, other, local := stagetest.Port(v1.IPv4Protocol, 1, 2), stagetest.Port(v1.IPv4Protocol, 2, 2), localPort(3)
	vip := blocked.Frontends[0].Addr.String()
	s.run(t, "ipvsadm -A -t "+vip+" -s wlc")
	s.run(t, "ipvsadm -a -t "+vip+" -r 192.0.2.99:80 -m -w 5")
	before := s.foreign(t)
	changed := *other
	changed.Annotations = map[string]string{SchedulerAnnotation: "lc"}
	check := func(when string, want proxy.Snapshot) {
		t.Helper()
		errs := s.apply(t, want)
		s.isUntouched(t, when, before)
		for _, err := range errs { // of several tries: none needs to read everything again
			if failed, _ := errors.AsType[proxy.PortErrors](err); len(failed) != 1 || failed[blocked.Name] == nil {
				t.Errorf("%s: got error %v, want one that names only %v", when, err, blocked.Name)
			}
		}
		if len(errs) == 0 {
			t.Errorf("%s: got no error, want one that names %v", when, blocked.Name)
		}
		if got := len(s.destinations(t, other)); got != 2 {
			t.Errorf("%s: real servers of another Service: got %d, want 2", when, got)
		}
	}
	check("from zero", snapshotOf(blocked, other, local))
	s.restart(t)
	check("after a restart", snapshotOf(blocked, other, local))
	s.Applied = proxy.Snapshot{}
	s.Apply(t, snapshotOf(other))
	check("added while another Service is replaced", snapshotOf(blocked, &changed, local))
	s.Applied = proxy.Snapshot{}
	s.Apply(t, snapshotOf(other))
	s.isUntouched(t, "after the Service was removed", before)
	s.run(t, "ipvsadm -D -t "+vip)
	if errs := s.apply(t, snapshotOf(blocked, other, local)); len(errs) > 0 {
		t.Errorf("after the foreign server was removed: got errors %v, want none", errs)
	}
	s.isAsFresh(t, "after the foreign server was removed")
}

// An endpoint that the kernel refuses makes only its own service port fail, also if the same change
// replaces something, which cannot be reverted: a real server, or a virtual server.
func TestRefusedRealServer(t *testing.T) {
	s := newStage(t, Options{})
	s.run(t, "ip link add near type dummy")
	s.run(t, "ip addr add 192.0.2.1/24 brd + dev near")
	s.run(t, "ip link set near up")
	good, drains, changes := stagetest.Port(v1.IPv4Protocol, 1, 2), stagetest.Port(v1.IPv4Protocol, 2, 2), stagetest.Port(v1.IPv4Protocol, 3, 2)
	drains.Name.Protocol = v1.ProtocolUDP
	s.Apply(t, snapshotOf(good, drains, changes))
	refused, draining, changed := *good, *drains, *changes
	refused.Cluster = append(refused.Cluster[:2:2], &endpoints.Endpoint{Addr: addrPort("192.0.2.255", 80), Ready: true, Serving: true})
	draining.Cluster, draining.Draining = drains.Cluster[:1], drains.Cluster[1:]
	changed.Annotations = map[string]string{SchedulerAnnotation: "lc"}
	for _, other := range []*proxy.ServicePort{&draining, &changed} {
		ports := map[proxy.ServicePortName]*proxy.ServicePort{good.Name: &refused, drains.Name: drains, changes.Name: changes, other.Name: other}
		want := snapshotOf(slices.Collect(maps.Values(ports))...)
		err := s.Backend.Apply(t.Context(), s.Applied, want)
		if failed, _ := errors.AsType[proxy.PortErrors](err); errors.Is(err, proxy.ErrDataplaneLost) || len(failed) != 1 || failed[good.Name] == nil {
			t.Errorf("while %v is replaced: got error %v, want one that names only %v", other.Name, err, good.Name)
		}
		s.Applied = s.Applied.Achieved(want, err)
		s.Apply(t, snapshotOf(good, drains, changes))
	}
}

// Servers elsewhere and by marks, also by those of the backend's range, sets and addresses of
// other programs stay as they are, from the first Apply to Cleanup.
func TestForeignObjects(t *testing.T) {
	s := newStage(t, Options{})
	for _, mark := range []uint32{markBase, markBase + 1, markBase + 2, markBase + markCount - 1, 7} {
		s.run(t, fmt.Sprintf("ipvsadm -A -f %d -s wlc", mark))
		s.run(t, fmt.Sprintf("ipvsadm -a -f %d -r 192.0.2.%d -m", mark, mark&7))
	}
	s.run(t, "ipvsadm -A -u 192.0.2.5:53 -s wlc")
	s.run(t, "ipset create theirs hash:ip")
	s.run(t, "ipset add theirs 192.0.2.5")
	before := s.foreign(t)
	a, b := localPort(1), localPort(2)
	for _, want := range []proxy.Snapshot{snapshotOf(a), snapshotOf(a, b), snapshotOf(b), snapshotOf()} {
		s.Apply(t, want)
		s.isUntouched(t, "after an Apply", before)
		s.adopts(t, want)
		s.isUntouched(t, "after a restart", before)
	}
	s.Apply(t, snapshotOf(a, b))
	if err := s.backend(t).Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup: got error %v, want none", err)
	}
	s.isUntouched(t, "after Cleanup", before)
	if got := s.run(t, "ipvsadm -Sn"); got != before {
		t.Errorf("virtual servers after Cleanup: got\n%s\nwant the foreign ones\n%s", got, before)
	}
	if got := s.run(t, "ipset list -n"); got != "theirs\n" {
		t.Errorf("sets after Cleanup: got %q, want theirs", got)
	}
}

// Two backends in one namespace with different identities leave each other's objects alone.
func TestTwoIdentities(t *testing.T) {
	one := newStage(t, Options{})
	other := &stage{one.Beside(t, Options{Identity: backends.Identity{Name: "other", Mark: 0x8000}}), one.kernel}
	for _, step := range []struct{ mine, theirs []*proxy.ServicePort }{
		{[]*proxy.ServicePort{localPort(1)}, []*proxy.ServicePort{localPort(11)}},
		{[]*proxy.ServicePort{localPort(1), localPort(2)}, []*proxy.ServicePort{localPort(11), localPort(12)}},
		{[]*proxy.ServicePort{localPort(2)}, []*proxy.ServicePort{localPort(12), localPort(13)}},
	} {
		if errs := append(one.apply(t, snapshotOf(step.mine...)), other.apply(t, snapshotOf(step.theirs...))...); len(errs) > 0 {
			t.Errorf("got errors %v, want none", errs)
		}
	}
	one.waitsDuring(t, "another identity's changes of addresses", func() {
		other.Apply(t, snapshotOf(localPort(12), localPort(13), localPort(14)))
	})
	one.adopts(t, one.Applied)
	other.adopts(t, other.Applied)
	one.isAsFresh(t, "beside another identity")
	before := other.dump(t)
	if err := one.backend(t).Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup: got error %v, want none", err)
	}
	if diff := cmp.Diff(before, other.dump(t)); diff != "" {
		t.Errorf("the other identity's objects after Cleanup (-before +after):\n%s", diff)
	}
	if got := one.dump(t); got != "" {
		t.Errorf("own objects after Cleanup: got\n%s\nwant none", got)
	}
}

// The tags of two identities differ, although the hashes of their names begin with the same 15 bits: one adopts and
// removes nothing of the other one.
func TestTwoIdentitiesWithSimilarTags(t *testing.T) {
	one := newStage(t, Options{Identity: backends.Identity{Name: "vip24"}})
	one.Apply(t, snapshotOf(localPort(1)))
	before := one.dump(t)
	other := &stage{one.Beside(t, Options{Identity: backends.Identity{Name: "vip78", Mark: 0x8000}}), one.kernel}
	other.Apply(t, snapshotOf(localPort(11)))
	testenv.NoError(t, other.backend(t).Cleanup(t.Context()))
	if diff := cmp.Diff(before, one.dump(t)); diff != "" {
		t.Errorf("objects of the first identity (-before +after):\n%s", diff)
	}
	one.adopts(t, one.Applied)
	if got := one.run(t, "ipset list -n"); strings.Contains(got, "VIP78-") {
		t.Errorf("sets: got\n%s\nwant none of the second identity", got)
	}
}

// After another program has removed all virtual servers, another identity may get that of an address and
// port first: it stays that one's, and the service port is named.
func TestServerOfAnotherIdentity(t *testing.T) {
	one := newStage(t, Options{})
	other := &stage{one.Beside(t, Options{Identity: backends.Identity{Name: "other", Mark: 0x8000}}), one.kernel}
	want := snapshotOf(localPort(1))
	one.Apply(t, want)
	one.run(t, "ipvsadm -C")
	other.Apply(t, want)
	before := other.dump(t)
	one.Applied = proxy.Snapshot{}
	err := one.Backend.Apply(t.Context(), one.Applied, want)
	if failed, _ := errors.AsType[proxy.PortErrors](err); len(failed) != 1 {
		t.Errorf("got error %v, want one that names the service port", err)
	}
	if diff := cmp.Diff(before, other.dump(t)); diff != "" {
		t.Errorf("the other identity's objects (-before +after):\n%s", diff)
	}
}

// waitsDuring requires that WaitDrift waits before, during and after changes.
func (s *stage) waitsDuring(t *testing.T, what string, change func()) {
	t.Helper()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- s.Backend.Abilities().WaitDrift(ctx) }()
	waits := func() bool {
		select {
		case err := <-ended:
			t.Errorf("%s: WaitDrift: got error %v, want it to wait", what, err)
			return false
		case <-time.After(300 * time.Millisecond):
			return true
		}
	}
	waiting := waits()
	change()
	waiting = waiting && waits()
	cancel()
	if waiting {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: WaitDrift: got error %v, want it to wait", what, err)
		}
	}
}

// The addresses that the backend itself adds and removes are no drift, however many.
func TestOwnAddressesAreNoDrift(t *testing.T) {
	s := newStage(t, Options{})
	s.Apply(t, snapshotOf())
	var ports []*proxy.ServicePort
	for i := range 2000 {
		ports = append(ports, stagetest.Port(v1.IPv4Protocol, i, 1))
	}
	for _, want := range []proxy.Snapshot{snapshotOf(ports...), snapshotOf()} {
		s.waitsDuring(t, fmt.Sprintf("change to %d Services", want.Len()), func() { s.Apply(t, want) })
	}
}

// It is no drift if an interface loses an address that another one has too, as those of pods may have
// that of the gateway, or if another instance makes its device.
func TestAddressesThatStayAreNoDrift(t *testing.T) {
	s := newStage(t, Options{})
	for _, name := range []string{"pod1", "pod2"} {
		s.run(t, "ip link add "+name+" type dummy")
		s.run(t, "ip addr add 10.244.0.1/32 dev "+name)
	}
	s.Apply(t, snapshotOf(localPort(1)))
	s.waitsDuring(t, "removal of one of two interfaces with an address", func() { s.run(t, "ip link del pod1") })
	s.waitsDuring(t, "another instance's new device", func() {
		s.run(t, "ip link add other-ipvs0 type dummy")
		s.run(t, "ip addr add 10.96.0.77/32 dev other-ipvs0")
	})
}

// An address of a Service that another interface has stays there, and its other ports reach
// the node. Node ports follow the addresses of interfaces, whose changes are noticed at once.
func TestAddressesOfTheNode(t *testing.T) {
	s := newStage(t, Options{})
	w := newTalkers(t, s, 1)
	p := w.port(0, 0)
	p.Frontends[0].Kind, p.Frontends[0].Addr = proxy.ExternalIP, addrPort("192.0.2.1", 80)
	p.Frontends = append(p.Frontends, stagetest.NodePort(v1.IPv4Protocol, 30_000))
	s.Apply(t, snapshotOf(p))
	if got := s.run(t, "ip -br addr show dev vipkit-ipvs0"); strings.Contains(got, "192.0.2.1") {
		t.Errorf("addresses of the device: got %s, want none that another interface has", got)
	}
	l, err := s.NS.Listen(t.Context(), "tcp", "192.0.2.1:81")
	testenv.NoError(t, err)
	defer l.Close() //nolint:errcheck // ends the test
	w.reach(t, "at an address of the node", "tcp", addrPort("192.0.2.1", 80), w.Hosts[0])
	if c, err := w.open(t, "tcp", addrPort("192.0.2.1", 81), netip.Addr{}); err != nil {
		t.Errorf("another port of the address: got error %v, want a connection", err)
	} else {
		c.reset()
	}
	more := addrPort("192.0.2.100", 30_000)
	if _, err := w.open(t, "tcp", more, netip.Addr{}); err == nil {
		t.Errorf("node port at an address that the node lacks: got a connection, want none")
	}
	for _, step := range []string{"add", "del"} {
		noticed := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		go func() { noticed <- s.Backend.Abilities().WaitDrift(ctx) }()
		select {
		case err := <-noticed:
			t.Errorf("%s: WaitDrift without a change: got error %v, want it to wait", step, err)
		case <-time.After(300 * time.Millisecond):
		}
		s.run(t, "ip addr "+step+" 192.0.2.100/24 dev clients")
		if err := <-noticed; err != nil {
			t.Errorf("%s: WaitDrift after a change: got error %v, want none", step, err)
		}
		cancel()
		s.Applied = proxy.Snapshot{}
		s.Apply(t, snapshotOf(p))
		if step == "add" {
			w.reach(t, "at an added address", "tcp", more, w.Hosts[0])
		}
	}
	if got := s.run(t, "ipvsadm -Sn"); strings.Contains(got, "192.0.2.100") {
		t.Errorf("virtual servers: got\n%s\nwant none at the removed address", got)
	}
	for _, a := range []string{"192.0.2.1:30000", "10.0.0.1:30000"} {
		if got := s.run(t, "ipvsadm -Sn"); !strings.Contains(got, "-A -t "+a) {
			t.Errorf("virtual servers: got\n%s\nwant one at %s", got, a)
		}
	}
}
