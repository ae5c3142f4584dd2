package kernelspace

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// The pause before the next try grows while an object is pending. An object that was carried out meanwhile is tried soon.
func TestPauseOfPendingObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, k := &shared{pending: newPendingObjects(nil)}, key{kind: kindLoadBalancer}
		pause := func() time.Duration {
			s.setPending(k, pendingObject{})
			s.setPending(k, pendingObject{err: errors.New("missing")})
			p := s.pending.all[k]
			return p.due().Sub(p.at)
		}
		for _, want := range []time.Duration{retryFirst, time.Minute, 2 * time.Minute} {
			if got := pause(); got != want {
				t.Errorf("pause: got %v, want %v", got, want)
			}
			time.Sleep(time.Minute)
		}
		s.setPending(k, pendingObject{})
		s.settle(k)
		if got := pause(); got != retryFirst {
			t.Errorf("pause after it was carried out: got %v, want %v", got, retryFirst)
		}
	})
}
