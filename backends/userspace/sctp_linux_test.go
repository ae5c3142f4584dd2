package userspace_test

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// Service ports for SCTP are reported by name, and all others are served.
func TestSCTPIsReportedByName(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		commits := 0
		around := func(commit func() error) error {
			commits++
			return commit()
		}
		b := n.faulty(t, c, &around)
		sctp := snapshots.With(web(one), ofProtocol(v1.ProtocolSCTP))
		// wants checks that Apply reports only the service port for SCTP, in a single commit.
		wants := func(old proxy.Snapshot, ports ...*proxy.ServicePort) (applied proxy.Snapshot) {
			t.Helper()
			commits = 0
			err := b.Apply(t.Context(), old, services(append(ports, sctp)...))
			failed, ok := errors.AsType[proxy.PortErrors](err)
			if !ok || len(failed) != 1 || failed[sctp.Name] == nil || errors.Is(err, proxy.ErrDataplaneLost) {
				t.Errorf("got error %v, want one that names %v alone", err, sctp.Name)
			}
			if commits > 1 {
				t.Errorf("commits: got %d, want 1 at most", commits)
			}
			return services(ports...)
		}
		applied := wants(proxy.Snapshot{}, web(one))
		n.wantAnswer(t, one)
		applied = wants(applied, web(one), web(two))
		n.wantAnswer(t, two)
		// A frontend moves from one service port to another.
		moved := snapshots.With(web(two), func(p *proxy.ServicePort) { p.Name.Name = "moved" })
		applied = wants(applied, web(one), moved)
		n.wantAnswer(t, two)
		if err := b.Apply(t.Context(), applied, snapshot(one)); err != nil {
			t.Errorf("without SCTP: got error %v, want none", err)
		}
	})
}
