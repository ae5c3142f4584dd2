package xtables

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func newBackend(t *testing.T, f Flavour) (*stage, *Backend) {
	t.Helper()
	s := newStage(t, config(f))
	b, ok := s.Backend.(*Backend)
	if !ok {
		t.Fatalf("backend: got a %T, want a *Backend", s.Backend)
	}
	s.Apply(t, someSnapshot())
	return s, b
}

// Only commits of other programs to tables of the names of iptables are drift, and all commits that are made
// while an own program runs.
func TestWatchTellsCommitsApart(t *testing.T) {
	t.Parallel()
	s, b := newBackend(t, NFT)
	w := b.kernels[0].watch
	const own, foreign, other = "add chain ip nat own", "add chain ip filter foreign", "add table inet other\nadd chain inet other x"
	scripts := 0
	load := func(script string) {
		scripts++
		s.nft(t, script+strconv.Itoa(scripts)+"\n") // a chain that does not exist yet
	}
	for _, c := range []struct {
		what    string
		commits int
		during  []string
		after   string
		want    bool
	}{
		{"an own commit", 1, []string{own}, "", false},
		{"two own commits", 2, []string{own, foreign}, "", false},
		{"a foreign commit during an own one", 1, []string{foreign, own}, "", true},
		{"a missing commit", 1, nil, "", true},
		{"a commit to another table", 0, nil, other, false},
		{"a foreign commit", 0, nil, foreign, true},
	} {
		testenv.NoError(t, w.Begin())
		err := w.Pause(t.Context(), func() (int, error) {
			for _, script := range c.during {
				load(script)
			}
			return c.commits, nil
		})
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if c.after != "" {
			load(c.after)
		}
		if got := b.Drifted(t.Context()); got != c.want {
			t.Errorf("after %s: drifted: got %t, want %t", c.what, got, c.want)
		}
	}
}

// A flush and a removed jump are noticed soon, and own changes are not.
func TestWaitDrift(t *testing.T) {
	t.Parallel()
	for _, f := range []Flavour{NFT, Legacy} {
		t.Run(string(f), func(t *testing.T) {
			for what, script := range map[string]string{
				"a flush":        "*nat\n-F\nCOMMIT\n",
				"a removed jump": "*filter\n-D INPUT 1\nCOMMIT\n",
			} {
				s, b := newBackend(t, f)
				s.Apply(t, proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 3)))
				ctx, cancel := context.WithTimeout(t.Context(), 2*lookInterval)
				if err := b.waitDrift(ctx); err == nil {
					t.Errorf("%s: waiting after own changes: got no error, want none to be noticed", what)
				}
				cancel()
				waited := make(chan error, 1)
				begun := time.Now()
				go func() { waited <- b.waitDrift(t.Context()) }()
				s.run(t, script, "iptables-restore", "--noflush", "-w", "5")
				if err := <-waited; err != nil {
					t.Errorf("%s: waiting: got error %v, want none", what, err)
				}
				t.Logf("%s: noticed after %v", what, time.Since(begun).Round(time.Millisecond))
			}
		})
	}
}

// A look of the legacy flavour takes the same time with any number of rules.
func BenchmarkLegacyLook(b *testing.B) {
	s := newStage(b, config(Legacy))
	s.run(b, "*nat\n:MANY - [0:0]\n"+strings.Repeat("-A MANY -j RETURN\n", 100_000)+"COMMIT\n", "iptables-restore", "--noflush", "-w", "5")
	backend, ok := s.Backend.(*Backend)
	if !ok {
		b.Fatalf("backend: got a %T, want a *Backend", s.Backend)
	}
	w, ok := backend.kernels[0].watch.(*legacyWatch)
	if !ok {
		b.Fatalf("watcher: got a %T, want a *legacyWatch", backend.kernels[0].watch)
	}
	testenv.NoError(b, w.Begin())
	for b.Loop() {
		w.compare()
	}
}

func someSnapshot() proxy.Snapshot {
	return proxy.NewSnapshot(stagetest.Node(), stagetest.Port(v1.IPv4Protocol, 0, 2))
}
