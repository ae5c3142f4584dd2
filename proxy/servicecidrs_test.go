package proxy

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// UpdateServiceCIDRs takes effect at once, and a change of the Node does not revert it.
func TestUpdateServiceCIDRs(t *testing.T) {
	tracker := NewServiceChangeTracker(TrackerOptions{NodeName: "here", ServiceCIDRs: prefixes("10.96.0.0/16")})
	tracker.Synced()
	next := func(after Snapshot, want ...string) Snapshot {
		t.Helper()
		s, err := tracker.Next(t.Context(), after)
		testenv.NoError(t, err)
		if got := s.Node().ServiceCIDRs; !slices.Equal(got, prefixes(want...)) {
			t.Errorf("service ranges: got %v, want %v", got, want)
		}
		return s
	}
	first := next(Snapshot{}, "10.96.0.0/16")
	tracker.UpdateServiceCIDRs(prefixes("fd00::/112", "10.97.0.0/16"))
	second := next(first, "10.97.0.0/16", "fd00::/112")
	tracker.UpdateNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{v1.LabelTopologyZone: "east"}}})
	third := next(second, "10.97.0.0/16", "fd00::/112")
	tracker.UpdateServiceCIDRs(prefixes("10.97.0.0/16", "fd00::/112"))
	if again := next(Snapshot{}, "10.97.0.0/16", "fd00::/112"); again.Generation() != third.Generation() {
		t.Errorf("the same ranges: got generation %d, want %d", again.Generation(), third.Generation())
	}
}
