package storm

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/agenttest"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) {
	os.Exit(agenttest.Main(act, func() int { return netnstest.Main(m) }))
}

// TestStorm: whatever happens, the invariants hold. A long storm begins anew now and then,
// with another seed.
func TestStorm(t *testing.T) {
	if path := os.Getenv(replayVariable); path != "" {
		playFile(t, path)
		return
	}
	names := backendNames()
	if only := os.Getenv(backendVariable); only != "" {
		if !slices.Contains(names, only) {
			t.Fatalf("%s: backend %q is none of %q", backendVariable, only, names)
		}
		names = []string{only}
	}
	for _, backend := range names {
		t.Run(backend, func(t *testing.T) {
			o := readOptions(t, backend)
			end := time.Now().Add(o.lasts)
			for n := 1; n == 1 || time.Now().Before(end) && !t.Failed(); n++ {
				t.Run(strconv.Itoa(n), func(t *testing.T) { playRandom(t, o, end) })
			}
		})
	}
}

// playRandom plays a random history until a time, or for some minutes.
func playRandom(t *testing.T, o *options, end time.Time) {
	const longest = 10 * time.Minute
	steps := history(testenv.Random(t), o)
	if latest := time.Now().Add(longest); end.After(latest) {
		end = latest
	}
	s := weather(t, o, func(yield func(step) bool) {
		for one := range steps {
			if !yield(one) || one.Do == doCalm && time.Now().After(end) {
				return
			}
		}
	})
	if t.Failed() {
		s.keep()
	}
}

// weather has a storm go by.
func weather(t *testing.T, o *options, steps iter.Seq[step]) *storm {
	t.Helper()
	// Nobody else works in the namespaces of the test.
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	s := newStorm(t, o)
	s.needBackend()
	found := s.run(steps)
	t.Log(s.report())
	for _, v := range found {
		t.Errorf("%s: %s", v.invariant, v.text)
	}
	return s
}

// needBackend ends a test where the backend cannot work.
func (s *storm) needBackend() {
	s.t.Helper()
	netnstest.NFT(s.t)
	err := s.world.node.Do(func() error {
		b, err := s.agentOptions().open()
		if err != nil {
			return err
		}
		if c, ok := b.(io.Closer); ok {
			defer c.Close() //nolint:errcheck // there is nothing to lose
		}
		ctx := s.t.Context()
		return errors.Join(b.Apply(ctx, proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{})), b.Cleanup(ctx))
	})
	if errors.Is(err, proxy.ErrUnsupported) {
		testenv.CannotRun(s.t, err.Error())
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// keep writes the last steps to the log, and all to a file if there is a folder for it.
func (s *storm) keep() {
	const last = 15
	steps := make([]step, 0, len(s.done))
	for i, one := range s.done {
		steps = append(steps, one.step)
		if i >= len(s.done)-last {
			s.t.Logf("step %d: %.900s", i+1, one.String())
			for _, note := range one.notes {
				s.t.Logf("    %s", note)
			}
		}
	}
	folder := os.Getenv(folderVariable)
	text, err := historyText(s.options.backend, steps)
	if err != nil || folder == "" {
		return // Nobody wants to have it.
	}
	path := filepath.Join(folder, fmt.Sprintf("storm-%s-%d.jsonl", s.options.backend, time.Now().UnixNano()))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("all steps are in %s; make storm STEPS=%s plays them again, and with REDUCE=1 finds fewer that fail", path, path)
}
