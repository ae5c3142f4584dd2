package userspace_test

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
)

// Ports that cannot be carried are named, and harm no others.
func TestSCTPIsReportedByName(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
		n.serve(t, podServer)
		commits := 0
		around := func(commit func() error) error {
			commits++
			return commit()
		}
		b := n.faulty(t, c, &around)
		// wants wants an Apply to name the port of SCTP alone, and to need no more
		// commits than without it.
		wants := func(old, next proxy.Snapshot, atMost int) {
			t.Helper()
			odd := *firstOf(snapshot(one))
			odd.Name.Protocol = v1.ProtocolSCTP
			commits = 0
			err := b.Apply(t.Context(), old, both(next, proxy.NewSnapshot(next.Node(), &odd)))
			failed, ok := errors.AsType[proxy.PortErrors](err)
			if !ok || len(failed) != 1 || failed[odd.Name] == nil || errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("got error %v, want one that names %v alone", err, odd.Name)
			}
			if commits > atMost {
				t.Errorf("it took %d commits, want %d", commits, atMost)
			}
		}
		wants(proxy.Snapshot{}, snapshot(one), 1)
		n.wantAnswer(t, one)
		wants(snapshot(one), both(snapshot(one), snapshot(two)), 1)
		n.wantAnswer(t, two)
		// The frontend of one port becomes another one's.
		moved := *firstOf(snapshot(two))
		moved.Name.Name = "moved"
		wants(both(snapshot(one), snapshot(two)), both(snapshot(one), proxy.NewSnapshot(snapshot(two).Node(), &moved)), 1)
		n.wantAnswer(t, two)
		if err := b.Apply(t.Context(), both(snapshot(one), proxy.NewSnapshot(snapshot(two).Node(), &moved)), snapshot(one)); err != nil {
			t.Errorf("without it: got error %v", err)
		}
	})
}

// What is not served at all is not reported.
func TestSCTPOfAnotherFamily(t *testing.T) {
	n := newNetwork(t)
	odd := *firstOf(withFamily(withEndpoint(snapshot("[fd00:96::1]:80"), "[fd00:2::10]:8080"), v1.IPv6Protocol))
	odd.Name.Protocol = v1.ProtocolSCTP
	apply(t, n.start(t, userspace.Options{Families: []v1.IPFamily{v1.IPv4Protocol}}), both(snapshot(one), proxy.NewSnapshot(snapshot(one).Node(), &odd)))
}
