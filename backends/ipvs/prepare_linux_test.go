//go:build ipvs

package ipvs

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// PrepareNode writes the settings, a second time too, and the backend leaves them as they are.
// Cleanup restores them.
func TestPrepareNode(t *testing.T) {
	s := newStage(t, Options{StrictARP: true})
	before := s.settings(t)
	for range 2 {
		testenv.NoError(t, s.NS.Do(func() error { return PrepareNode(t.Context(), s.Options) }))
	}
	prepared := s.settings(t)
	if prepared[settingConntrack] != "1" || prepared[settingARPIgnore] != "1" {
		t.Errorf("settings: got %v, want those of the backend", prepared)
	}
	s.Apply(t, snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2)))
	if diff := cmp.Diff(prepared, s.settings(t)); diff != "" {
		t.Errorf("settings after an Apply (-before +after):\n%s", diff)
	}
	testenv.NoError(t, s.backend(t).Cleanup(t.Context()))
	if diff := cmp.Diff(before, s.settings(t)); diff != "" {
		t.Errorf("settings after Cleanup (-before +after):\n%s", diff)
	}
}

// A check of the node changes no rule, also while the backend serves.
func TestCheckNode(t *testing.T) {
	s := newStage(t, Options{})
	for _, world := range []proxy.Snapshot{{}, snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2))} {
		if !world.IsZero() {
			s.Apply(t, world)
		}
		before := s.rules(t)
		if err := s.checkNode(t); err != nil {
			t.Errorf("got error %v, want none", err)
		}
		if diff := cmp.Diff(before, s.rules(t)); diff != "" {
			t.Errorf("rules (-before +after):\n%s", diff)
		}
	}
}

// It names what is missing, and leaves no rule.
func TestCheckNodeWithoutModule(t *testing.T) {
	s := newStage(t, Options{})
	netnstest.WithoutModule(t, "xt_ipvs")
	err := s.checkNode(t)
	if !errors.Is(err, proxy.ErrUnsupported) || !strings.Contains(err.Error(), "load the kernel module xt_ipvs") {
		t.Errorf("got error %v, want %v that names xt_ipvs", err, proxy.ErrUnsupported)
	}
	if got := s.rules(t); strings.Contains(got, "VIPKIT-") {
		t.Errorf("rules: got\n%s\nwant none of the backend", got)
	}
}

func (s *stage) checkNode(t *testing.T) error {
	t.Helper()
	return s.NS.Do(func() error { return s.backend(t).checkNode(t.Context()) })
}

// rules returns all rules and chains, without counters and times.
func (s *stage) rules(t *testing.T) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(s.run(t, "iptables-save") + s.run(t, "ip6tables-save")) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ":") || strings.Contains(line, "VIPKIT-") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
