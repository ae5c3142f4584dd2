//go:build ipvs

package ipvs

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// PrepareNode writes the settings, a second time too, and the backend leaves them as they are.
func TestPrepareNode(t *testing.T) {
	s := newStage(t, Options{StrictARP: true})
	for range 2 {
		testenv.NoError(t, s.NS.Do(func() error { return PrepareNode(t.Context(), s.Options) }))
	}
	prepared := s.settings(t)
	if prepared["conntrack"] != "1" || prepared["arp_ignore"] != "1" {
		t.Errorf("settings: got %v, want those of the backend", prepared)
	}
	s.Apply(t, snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2)))
	if diff := cmp.Diff(prepared, s.settings(t)); diff != "" {
		t.Errorf("settings after an Apply (-before +after):\n%s", diff)
	}
}
