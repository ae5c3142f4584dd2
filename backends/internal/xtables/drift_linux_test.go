package xtables

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// If an own program commits less often than expected, a commit of another program is still
// noticed.
func TestDriftAfterMissingCommit(t *testing.T) {
	s := newStage(t, config(NFT))
	b, ok := s.Backend.(*Backend)
	if !ok {
		t.Fatalf("backend: got a %T, want a *Backend", s.Backend)
	}
	s.Apply(t, someSnapshot())
	w, ok := b.watcher.(*watch)
	if !ok {
		t.Fatalf("watcher: got a %T, want a *watch", b.watcher)
	}
	w.committed(t.Context(), 1, nil)
	s.nft(t, "flush ruleset\n") // one commit
	if !b.Drifted(t.Context()) {
		t.Error("drifted: got false, want true")
	}
}

func someSnapshot() proxy.Snapshot {
	return proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 2))
}
