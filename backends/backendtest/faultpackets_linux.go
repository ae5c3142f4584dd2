package backendtest

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// lawFaultPackets: after an Apply that has failed for some service ports, packets of all others follow the
// snapshot that the dataplane holds.
func lawFaultPackets(t *testing.T, s *stage) {
	h := newHistory(testenv.Random(t), s.tracker(nodeOptions()), 5, s.isLacking(Affinity))
	failures, checked := 0, 0
	for step := 0; step < 200 && failures < testenv.Rounds(24); step++ {
		s.faults.set(3 * faultShare)
		before := s.applied
		err := s.try(t, h.next(t))
		s.calm()
		if err == nil {
			continue
		}
		failures++
		var flights []flight
		for i := range h.samples {
			flights = append(flights, h.samples[i].randomFlights(h.random)...)
		}
		checked += s.checkOthers(t, before, h.last, err, s.inWorld(flights))
		if t.Failed() {
			t.Fatalf("in step %d, after error %v", step+1, err)
		}
		s.apply(t, h.last)
	}
	t.Logf("%d failed Applies, %d packets of other service ports", failures, checked)
	if failures < 4 || checked == 0 {
		t.Errorf("got %d failures and %d packets, or the test shows nothing", failures, checked)
	}
}

// checkOthers sends flights to service ports that have not failed, after an Apply that has. If the error names no
// ports, each port that changes may have failed. It returns how many it sent.
func (s *stage) checkOthers(t *testing.T, old, next proxy.Snapshot, err error, flights []flight) (sent int) {
	t.Helper()
	testenv.NoError(t, s.flush())
	failed, some := errors.AsType[proxy.PortErrors](err)
	if !some {
		failed = changesOf(old, next, err)
	}
	half := addressesOf(failed, old, next)
	var wants [][]string
	var probes []probe
	for _, f := range flights {
		was, is := proxy.Route(old, s.packet(f)), proxy.Route(next, s.packet(f))
		want := s.allowed(f, is)
		switch {
		case failed[was.Name] != nil || failed[is.Name] != nil || half[f.to.Addr()]:
			continue
		case some:
			want = s.allowed(f, proxy.Route(s.applied, s.packet(f)))
		case !slices.Equal(s.allowed(f, was), want):
			continue
		}
		wants = append(wants, want)
		probes = append(probes, probe{from: f.from, protocol: f.protocol, to: f.to, tries: 3, patience: patience})
	}
	replies, err := s.probeAll(t.Context(), probes)
	testenv.NoError(t, err)
	for i, p := range probes {
		for _, got := range summary(replies[i]) {
			if !slices.Contains(wants[i], got) {
				t.Errorf("%s to %s/%s: got %s, want one of %s", p.from, p.to, p.protocol, got, strings.Join(wants[i], ", "))
			}
		}
	}
	return len(probes)
}

// changesOf returns the service ports that differ between two snapshots, each with the error.
func changesOf(old, next proxy.Snapshot, err error) proxy.PortErrors {
	all := proxy.PortErrors{}
	for _, s := range [...][2]proxy.Snapshot{{old, next}, {next, old}} {
		for p := range s[0].All() {
			if other, ok := s[1].Get(p.Name); !ok || other != p {
				all[p.Name] = err
			}
		}
	}
	return all
}

// addressesOf returns the addresses of service ports that failed. What holds for other ports of an address,
// and for ICMP, depends on whether the dataplane has it.
func addressesOf(failed proxy.PortErrors, snapshots ...proxy.Snapshot) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for name := range failed {
		for _, s := range snapshots {
			if p, ok := s.Get(name); ok {
				for i := range p.Frontends {
					all[p.Frontends[i].Addr.Addr()] = true
				}
			}
		}
	}
	return all
}
