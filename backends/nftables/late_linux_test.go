package nftables

import (
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// followLate calls Follow once it is due, as a Runner does at a resync.
func (s *flowStage) followLate(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !s.Flows.RetryDue(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("untranslated flows were removed: got Due false for a minute, want true")
		}
	}
	testenv.NoError(t, s.Flows.RemoveStale(t.Context(), s.Applied, false))
}

// isLate reports whether servers are wrong only where a client has reached a gateway instead of an endpoint. On a
// busy machine, replies of the gateway may come later than the Cleaner waits for them. To the kernel the client then
// belongs to the gateway, until a later Follow.
func isLate(got, want [3]string) bool {
	late := false
	for i := range got {
		isGateway := strings.Contains(got[i], "gateway") && (want[i] == "A" || want[i] == "B")
		if got[i] != want[i] && !isGateway {
			return false
		}
		late = late || isGateway
	}
	return late
}

// settled returns the servers of the clients; after a late reply, those after another Follow.
func (s *flowStage) settled(t *testing.T, servers func([3]string) [3]string, want [3]string) [3]string {
	t.Helper()
	got := servers(want)
	if !isLate(got, want) {
		return got
	}
	t.Logf("servers of the clients: got %q, since a gateway answered late", got)
	s.followLate(t)
	return servers(want)
}
