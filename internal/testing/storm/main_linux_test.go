package storm

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) {
	os.Exit(agenttest.Main(agentMain, func() int { return netnstest.Main(m, cost) }))
}

// TestStorm plays random histories and checks the invariants. A long storm consists of
// several histories with different seeds.
func TestStorm(t *testing.T) {
	names := backendNames()
	if only := testenv.Names(t, backendVariable, names); len(only) > 0 {
		names = only
	}
	shorter := testenv.Flag(t, reduceVariable)
	if path := os.Getenv(replayVariable); path != "" {
		playFile(t, path, shorter)
		return
	}
	if shorter {
		t.Fatalf("%s: got no %s, want the file with the steps to reduce", reduceVariable, replayVariable)
	}
	for _, backend := range names {
		t.Run(backend, func(t *testing.T) {
			o := readOptions(t, backend)
			t.Parallel()
			end := time.Now().Add(o.duration)
			for n := 1; n == 1 || time.Now().Before(end) && !t.Failed(); n++ {
				t.Run(strconv.Itoa(n), func(t *testing.T) { playRandom(t, o, end) })
			}
		})
	}
}

// playRandom plays a random history until end, at most for some minutes.
func playRandom(t *testing.T, o *options, end time.Time) {
	const longest = 10 * time.Minute
	steps := history(testenv.Random(t), o)
	if latest := time.Now().Add(longest); end.After(latest) {
		end = latest
	}
	s := runStorm(t, o, func(yield func(step) bool) {
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

// runStorm carries out steps in a new storm, and reports the violations.
func runStorm(t *testing.T, o *options, steps iter.Seq[step]) *storm {
	t.Helper()
	s := newStorm(t, o)
	s.needBackend()
	found := s.run(steps)
	t.Log(s.report())
	for _, v := range found {
		t.Errorf("%s, at %s: %s", v.invariant, v.at.UTC().Format(clock), v.text)
	}
	return s
}

// needBackend ends the test if the kernel or the node does not support the backend.
func (s *storm) needBackend() {
	s.t.Helper()
	netnstest.NFT(s.t)
	err := s.withBackend(func(b proxy.Backend) error {
		ctx := s.t.Context()
		return errors.Join(b.Apply(ctx, proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{})), b.Cleanup(ctx))
	})
	if errors.Is(err, proxy.ErrUnsupported) {
		testenv.CannotRun(s.t, err.Error())
	}
	testenv.NoError(s.t, err)
}

// withBackend calls use on the node, with a backend as the agent has it.
func (s *storm) withBackend(use func(proxy.Backend) error) error {
	return s.world.node.Do(func() error {
		b, err := s.agentOptions().open()
		if err != nil {
			return err
		}
		defer b.Close() //nolint:errcheck // the backend has written nothing that must be kept
		return use(b)
	})
}

// keep writes the last steps to the log, and all steps to a file if a folder is set.
func (s *storm) keep() {
	const last = 15
	steps := make([]step, 0, len(s.done))
	for i, one := range s.done {
		steps = append(steps, one.step)
		if i >= len(s.done)-last {
			s.t.Logf("step %d, at %s: %.900s", i+1, one.start.UTC().Format(clock), one.String())
			for _, note := range one.notes {
				s.t.Logf("    %s", note)
			}
		}
	}
	folder := os.Getenv(folderVariable)
	if folder == "" {
		return // No file is requested.
	}
	text := historyText(s.options.backend, steps)
	if folder == toOutput {
		fmt.Print(text) // without the indentation of a log
		return
	}
	path := filepath.Join(folder, fmt.Sprintf("storm-%s-%d.jsonl", s.options.backend, time.Now().UnixNano()))
	testenv.NoError(s.t, os.WriteFile(path, []byte(text), 0o600))
	s.t.Logf("all steps are in %s; make storm STEPS=%s plays them again, with REDUCE=1 it looks for fewer steps that fail", path, path)
}
