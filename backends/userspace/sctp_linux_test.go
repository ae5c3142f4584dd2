package userspace_test

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
)

// Service ports for SCTP are reported by name, and all others are served.
func TestSCTPIsReportedByName(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.serve(t, podServer)
		commits := 0
		around := func(commit func() error) error {
			commits++
			return commit()
		}
		b := n.faulty(t, c, &around)
		// wants checks that Apply reports only the service port for SCTP, and needs no more
		// commits than without it.
		wants := func(old, next proxy.Snapshot, atMost int) {
			t.Helper()
			sctp := *firstOf(snapshot(one))
			sctp.Name.Protocol = v1.ProtocolSCTP
			commits = 0
			err := b.Apply(t.Context(), old, both(next, proxy.NewSnapshot(next.Node(), &sctp)))
			failed, ok := errors.AsType[proxy.PortErrors](err)
			if !ok || len(failed) != 1 || failed[sctp.Name] == nil || errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("got error %v, want one that names %v alone", err, sctp.Name)
			}
			if commits > atMost {
				t.Errorf("commits: got %d, want %d at most", commits, atMost)
			}
		}
		wants(proxy.Snapshot{}, snapshot(one), 1)
		n.wantAnswer(t, one)
		wants(snapshot(one), both(snapshot(one), snapshot(two)), 1)
		n.wantAnswer(t, two)
		// A frontend moves from one service port to another.
		moved := *firstOf(snapshot(two))
		moved.Name.Name = "moved"
		wants(both(snapshot(one), snapshot(two)), both(snapshot(one), proxy.NewSnapshot(snapshot(two).Node(), &moved)), 1)
		n.wantAnswer(t, two)
		if err := b.Apply(t.Context(), both(snapshot(one), proxy.NewSnapshot(snapshot(two).Node(), &moved)), snapshot(one)); err != nil {
			t.Errorf("without SCTP: got error %v, want none", err)
		}
	})
}

// A service port for SCTP of a family that is not served is not reported.
func TestSCTPOfAnotherFamily(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	sctp := *firstOf(withEndpoint(snapshot("[fd00:96::1]:80"), "[fd00:2::10]:8080"))
	sctp.Name.Protocol = v1.ProtocolSCTP
	apply(t, n.start(t, userspace.Options{Families: []v1.IPFamily{v1.IPv4Protocol}}), both(snapshot(one), proxy.NewSnapshot(snapshot(one).Node(), &sctp)))
}
