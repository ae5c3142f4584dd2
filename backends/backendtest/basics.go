package backendtest

import (
	"testing"

	"github.com/vipkit/vipkit/proxy"
)

// An Apply of a Service programs something.
func lawBasics(t *testing.T, s *subject) {
	before := s.dump(t)
	tracker := s.track()
	o := plainSample(1, 0).Objects()
	o.HandTo(tracker)
	tracker.Synced()
	next := nextOf(t, tracker, proxy.Snapshot{})
	s.apply(t, next)
	if after := s.dump(t); after == before {
		t.Errorf("Apply of a Service at %v with 3 endpoints: got no error and the same dump as before, want the Service in it:\n%s",
			plainSample(1, 0).ClusterIP(), after)
	}
}
