//go:build ipvs

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// marked returns service ports that need one mark each, for their external address.
func marked(from, to int) []*proxy.ServicePort {
	return objects.Many(to-from, func(i int) *proxy.ServicePort {
		return snapshots.With(localPort(from+i), func(p *proxy.ServicePort) { p.Frontends = p.Frontends[:2] })
	})
}

// When all marks are in use, the service ports without one are named, and others are served.
// Marks of removed service ports are used again, also by another process.
func TestMarksAreExhausted(t *testing.T) {
	s := newStage(t, Options{})
	const limit = 4
	s.backend(t).target.marks.limit = limit
	s.Apply(t, snapshotOf(marked(0, 2)...))
	for _, from := range []proxy.Snapshot{s.Applied, {}} {
		s.Applied = from
		err := s.Backend.Apply(t.Context(), s.Applied, snapshotOf(marked(0, limit+2)...))
		failed, _ := errors.AsType[proxy.PortErrors](err)
		if len(failed) != 2 || !errors.Is(err, errMarks) {
			t.Fatalf("%d service ports with %d marks: got error %v, want one that names 2 and wraps %v", limit+2, limit, err, errMarks)
		}
		s.Applied = s.Applied.Achieved(snapshotOf(marked(0, limit+2)...), err)
	}
	s.Applied = proxy.Snapshot{}
	if errs := s.apply(t, snapshotOf(marked(2, limit+2)...)); len(errs) > 2 {
		t.Errorf("as many as there are marks: got errors %v, want success", errs)
	}
	for round := range 3 * limit {
		s.Apply(t, snapshotOf(marked(2+round, limit+2+round)...))
		s.Apply(t, snapshotOf(marked(3+round, limit+3+round)[:limit-1]...))
	}
	last := s.Applied
	s.restart(t)
	s.backend(t).target.marks.limit = limit
	s.Apply(t, last)
	if got := s.Operations(t); got != 0 {
		t.Errorf("operations after a restart: got %d, want 0", got)
	}
	// Additions come before removals, so the first Apply may lack marks.
	if errs := s.apply(t, snapshotOf(marked(0, limit)...)); len(errs) > 1 {
		t.Errorf("other service ports: got errors %v, want success", errs)
	}
	s.isAsFresh(t, "after all marks were used")
}

// A service port that comes to need a mark when all are in use is named, each time. What others need no
// more is removed all the same.
func TestMarksAreExhaustedForChange(t *testing.T) {
	s := newStage(t, Options{DrainTimeout: -1})
	const limit = 4
	s.backend(t).target.marks.limit = limit
	all := marked(0, limit)
	changed, shrinks := stagetest.Port(v1.IPv4Protocol, limit, 2), stagetest.Port(v1.IPv4Protocol, limit+1, 2)
	s.Apply(t, snapshotOf(append(all, changed, shrinks)...))
	want := snapshotOf(append(all, marked(limit, limit+1)[0], stagetest.Port(v1.IPv4Protocol, limit+1, 1))...)
	for range 2 {
		err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, want)
		if failed, _ := errors.AsType[proxy.PortErrors](err); len(failed) != 1 || failed[changed.Name] == nil || !errors.Is(err, errMarks) {
			t.Errorf("got error %v, want one that names only %v and wraps %v", err, changed.Name, errMarks)
		}
		if got := len(s.destinations(t, shrinks)); got != 1 {
			t.Errorf("real servers of %v: got %d, want 1", shrinks.Name, got)
		}
	}
}

// A service port that needs more marks than there are takes none.
func TestRefusedPortTakesNoMarks(t *testing.T) {
	s := newStage(t, Options{})
	const limit = 4
	s.backend(t).target.marks.limit = limit
	s.Apply(t, snapshotOf(marked(0, 2)...))
	refused := localPort(limit)
	frontend := refused.Frontends[1]
	refused.Frontends = refused.Frontends[:1]
	for i := range limit - 1 {
		frontend.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(200 + i)}), 80)
		refused.Frontends = append(refused.Frontends, frontend)
	}
	want := snapshotOf(append(marked(0, 2), refused)...)
	err := s.Backend.Apply(t.Context(), s.Applied, want)
	failed, _ := errors.AsType[proxy.PortErrors](err)
	if len(failed) != 1 || !errors.Is(err, errMarks) {
		t.Fatalf("a service port that needs %d marks: got error %v, want one that names it and wraps %v", limit-1, err, errMarks)
	}
	s.Applied = s.Applied.Achieved(want, err)
	s.Apply(t, snapshotOf(marked(0, limit)...))
}

// Whatever another program does with the sets of marks and the servers of marks, an Apply
// that knows nothing repairs it.
func TestMarksAreRepaired(t *testing.T) {
	s := newStage(t, Options{})
	want := snapshotOf(marked(0, 2)...)
	s.Apply(t, want)
	before := s.dump(t)
	one := marked(0, 1)[0].Frontends[1].Addr
	entry := fmt.Sprintf("%v,tcp:%d", one.Addr(), one.Port())
	for _, commands := range [][]string{
		{"ipset del VIPKIT-MARKS " + entry},
		{"ipset del VIPKIT-INSIDE " + entry},
		{"ipset -exist add VIPKIT-MARKS " + entry + " skbmark 0x7"},
		{"ipset -exist add VIPKIT-INSIDE " + entry + " skbmark 0x7"},
		{"ipset -exist add VIPKIT-MARKS 203.0.113.9,tcp:1001 skbmark 0x76500003", "ipset -exist add VIPKIT-MARKS 203.0.113.9,tcp:1000 skbmark 0x76500003"},
		{"ipset flush VIPKIT-MARKS", "ipset flush VIPKIT-INSIDE"},
		{"ipset flush VIPKIT-MARKS", "ipvsadm -C"},
	} {
		for _, c := range commands {
			s.run(t, c)
		}
		s.Applied = proxy.Snapshot{}
		if errs := s.apply(t, want); len(errs) > 0 {
			t.Errorf("%v: got errors %v, want none", commands, errs)
		}
		if diff := cmp.Diff(before, s.dump(t)); diff != "" {
			t.Fatalf("%v: after an Apply from zero (-before +after):\n%s", commands, diff)
		}
		s.adopts(t, want)
	}
}

// A program that edits a virtual server for marked packets removes its tag, as ipvsadm does. The
// set of marks shows whose it is: it is repaired, and Cleanup removes it.
func TestEditedServerOfMark(t *testing.T) {
	s := newStage(t, Options{})
	want := snapshotOf(marked(0, 2)...)
	s.Apply(t, want)
	before := s.dump(t)
	edit := func() {
		t.Helper()
		edited := 0
		for line := range strings.Lines(s.run(t, "ipvsadm -Sn")) {
			if words := strings.Fields(line); words[0] == "-A" && words[1] == "-f" {
				s.run(t, "ipvsadm -E -f "+words[2]+" -s wlc")
				edited++
			}
		}
		if edited != 2 {
			t.Fatalf("virtual servers of marks: got %d, want 2", edited)
		}
	}
	edit()
	s.Applied = proxy.Snapshot{}
	if errs := s.apply(t, want); len(errs) > 0 {
		t.Errorf("got errors %v, want none", errs)
	}
	if diff := cmp.Diff(before, s.dump(t)); diff != "" {
		t.Errorf("after an Apply from zero (-before +after):\n%s", diff)
	}
	if got := strings.Count(s.run(t, "ipvsadm -Sn"), "-A -f"); got != 2 {
		t.Errorf("virtual servers of marks after an Apply from zero: got %d, want 2", got)
	}
	edit()
	if err := s.backend(t).Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup: got error %v, want none", err)
	}
	if got := s.run(t, "ipvsadm -Sn"); got != "" {
		t.Errorf("virtual servers after Cleanup: got\n%s\nwant none", got)
	}
}
