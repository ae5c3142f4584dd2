package manifest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const interval = 10 * time.Second

// running is a Watcher that runs in a bubble of synctest.
type running struct {
	*recorder
	t         *testing.T
	reports   []string
	summaries []Summary
	end       func() error // ends Run and returns its error
}

// run starts to follow path in the bubble and waits for the check that confirms the first one.
func run(t *testing.T, path string) *running {
	t.Helper()
	r := &running{t: t, recorder: newRecorder(t)}
	s := &Watcher{
		Path:     path,
		Interval: interval,
		Handler:  r.recorder,
		Logger:   logr.New(&sink{only: "manifest problem", keep: func(text string) { r.reports = append(r.reports, strings.ReplaceAll(text, path, "DIR")) }}),
		Observe:  func(s Summary) { r.summaries = append(r.summaries, s) },
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r.end = func() error {
		cancel()
		return <-done
	}
	time.Sleep(interval / confirmFraction)
	synctest.Wait()
	return r
}

// after waits and returns the calls in that time.
func (r *running) after(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	return r.take()
}

func (r *running) want(what string, got []string, want ...string) {
	r.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestRunFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "a.yaml", service("web", 80))
		r := run(t, dir)
		r.want("at first", r.take(), "update Service default/web", "synced")
		r.want("nothing changed", r.after(100*interval))

		write(t, dir, "a.yaml", service("web", 8080))
		write(t, dir, "b.yaml", service("api", 80))
		r.want("at the check that finds it", r.after(interval))
		r.want("at the check that confirms it", r.after(interval/confirmFraction),
			"update Service default/web", "update Service default/api")

		testenv.NoError(t, os.Remove(filepath.Join(dir, "a.yaml")))
		r.want("deleted", r.after(2*interval), "delete Service default/web")
		testenv.NoError(t, r.end())
		r.want("at the end", r.take())
		r.want("reports", r.reports)
		summaries := []Summary{
			{Files: 1, Warnings: 1, Services: 1, Ignored: map[string]int{}},
			{Files: 2, Warnings: 2, Services: 2, Ignored: map[string]int{}},
			{Files: 1, Warnings: 1, Services: 1, Ignored: map[string]int{}},
		}
		testenv.Same(t, summaries, r.summaries, "summaries")
	})
}

// A file that is truncated and written again piece by piece deletes nothing, though its content
// is well-formed in between.
func TestRunWaitsForWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		before := service("web", 80) + "---\n" + service("api", 80)
		after := service("web", 80) + "---\n" + service("api", 8080)
		write(t, dir, "a.yaml", before)
		r := run(t, dir)
		r.take()
		time.Sleep(interval - time.Millisecond)
		for n := 0; n < len(after); n += 8 {
			write(t, dir, "a.yaml", after[:n])
			r.want("while it is written", r.after(interval/confirmFraction))
		}
		write(t, dir, "a.yaml", after)
		r.want("when it is written", r.after(interval), "update Service default/api")

		// An editor renames the old file before it writes the new one; at most one check is
		// in between.
		name := filepath.Join(dir, "a.yaml")
		for range 50 {
			testenv.NoError(t, os.Rename(name, name+"~"))
			r.want("while it is missing", r.after(interval/confirmFraction-time.Millisecond))
			write(t, dir, "a.yaml", after)
			r.want("when it is back", r.after(interval/7))
		}
		testenv.NoError(t, r.end())
	})
}

func TestRunReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir, "a.yaml", service("web", 80))
		r := run(t, dir)
		for _, text := range []string{"oops", "oops", "[", service("web", 80), service("web", 80) + "\n"} {
			write(t, dir, "a.yaml", text)
			r.after(2 * interval)
		}
		testenv.NoError(t, r.end())
		r.want("reports", r.reports,
			filepath.Join("DIR", "a.yaml")+":1: not an object",
			filepath.Join("DIR", "a.yaml")+":1: not an object resolved",
			filepath.Join("DIR", "a.yaml")+":1: did not find expected node content",
			filepath.Join("DIR", "a.yaml")+":1: did not find expected node content resolved")
		if got, want := r.summaries[1].Services, 1; got != want {
			t.Errorf("got %d Services while the file is broken, want %d that is kept", got, want)
		}
		if got, want := len(r.summaries), 5; got != want {
			t.Errorf("got %d summaries, want %d: one for each new content", got, want)
		}
	})
}

// While Path cannot be read, the handler is not called: not at the start, when Synced would mean
// that there are no Services, and not later.
func TestRunWithoutPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent := t.TempDir()
		dir, aside := filepath.Join(parent, "dir"), filepath.Join(parent, "aside")
		r := run(t, dir)
		r.want("no folder", r.after(3*interval))
		if len(r.reports) != 1 || !strings.Contains(r.reports[0], "DIR") {
			t.Errorf("got reports %q, want one that names the folder", r.reports)
		}
		testenv.NoError(t, os.Mkdir(aside, 0o700))
		write(t, aside, "a.yaml", service("web", 80))
		for _, move := range []struct {
			from, to string
			calls    []string
		}{
			{aside, dir, []string{"update Service default/web", "synced"}},
			{dir, aside, nil},
			{aside, dir, nil},
		} {
			testenv.NoError(t, os.Rename(move.from, move.to))
			r.want("to "+filepath.Base(move.to), r.after(3*interval), move.calls...)
		}
		testenv.NoError(t, r.end())
		missing := r.reports[0]
		r.want("reports", r.reports, missing, missing+" resolved", missing, missing+" resolved")
	})
}

// A ConfigMap's volume is a folder of symbolic links through a link that is
// replaced.
func TestRunConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		link := func(target, name string) {
			t.Helper()
			temporary := filepath.Join(dir, "..tmp")
			testenv.NoError(t, os.Symlink(target, temporary))
			testenv.NoError(t, os.Rename(temporary, filepath.Join(dir, name)))
		}
		for version, port := range map[string]int{"..1": 80, "..2": 81} {
			testenv.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o700))
			write(t, dir, filepath.Join(version, "a.yaml"), service("web", port))
		}
		link("..1", "..data")
		link(filepath.Join("..data", "a.yaml"), "a.yaml")
		r := run(t, dir)
		r.want("at first", r.take(), "update Service default/web", "synced")
		link("..2", "..data")
		r.want("after the swap", r.after(2*interval), "update Service default/web")
		testenv.NoError(t, os.RemoveAll(filepath.Join(dir, "..2")))
		r.want("without the target", r.after(2*interval))
		testenv.NoError(t, r.end())
		if len(r.reports) != 1 {
			t.Errorf("got reports %q, want one of the link without a target", r.reports)
		}
	})
}

func TestRunSingleFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "objects")
		write(t, dir, "objects", service("web", 80))
		r := run(t, path)
		r.want("at first", r.take(), "update Service default/web", "synced")
		testenv.NoError(t, os.Remove(path))
		r.want("without the file", r.after(3*interval))
		// The new file has another size: it may have the inode number of the old one and, within a
		// tick of the file system's clock, the same time, which the bubble's clock does not show.
		write(t, dir, "objects", service("other", 80))
		r.want("with another", r.after(2*interval), "update Service default/other", "delete Service default/web")
		testenv.NoError(t, r.end())
	})
}

func TestSettings(t *testing.T) {
	for name, s := range map[string]*Watcher{
		"without Path":      {Handler: newRecorder(t)},
		"without Handler":   {Path: t.TempDir()},
		"negative Interval": {Path: t.TempDir(), Handler: newRecorder(t), Interval: -1},
	} {
		if err := s.Load(t.Context()); err == nil {
			t.Errorf("%s: Load: got no error, want one", name)
		}
		if err := s.Run(t.Context()); err == nil || t.Context().Err() != nil {
			t.Errorf("%s: Run: got error %v, want one of the settings", name, err)
		}
	}
}
