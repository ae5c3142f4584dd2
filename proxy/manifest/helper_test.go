package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/rogpeppe/go-internal/txtar"
	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// recorder is a handler that records the calls, keeps the objects as JSON and checks the
// contract of Handler.
type recorder struct {
	t       testing.TB
	calls   []string
	objects map[string]string // JSON by kind and name
	synced  bool
}

func newRecorder(t testing.TB) *recorder {
	return &recorder{t: t, objects: make(map[string]string)}
}

func (r *recorder) update(name string, o any) {
	r.t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		r.t.Fatalf("marshal %s: %v", name, err)
	}
	if r.objects[name] == string(data) {
		r.t.Errorf("%s handed over again without a change", name)
	}
	r.objects[name] = string(data)
	r.calls = append(r.calls, "update "+name)
}

func (r *recorder) remove(name string) {
	r.t.Helper()
	if _, ok := r.objects[name]; !ok {
		r.t.Errorf("%s deleted, but the handler does not have it", name)
	}
	delete(r.objects, name)
	r.calls = append(r.calls, "delete "+name)
}

func (r *recorder) UpdateService(s *v1.Service) { r.update("Service "+s.Namespace+"/"+s.Name, s) }

func (r *recorder) DeleteService(n types.NamespacedName) { r.remove("Service " + n.String()) }

func (r *recorder) UpdateEndpointSlice(s *discoveryv1.EndpointSlice) {
	r.update("EndpointSlice "+s.Namespace+"/"+s.Name, s)
}

func (r *recorder) DeleteEndpointSlice(n types.NamespacedName) {
	r.remove("EndpointSlice " + n.String())
}

func (r *recorder) UpdateNode(n *v1.Node) { r.update("Node "+n.Name, n) }

func (r *recorder) Synced() {
	if r.synced {
		r.t.Error("Synced called twice")
	}
	r.synced = true
	r.calls = append(r.calls, "synced")
}

// take returns the calls since the last take.
func (r *recorder) take() []string {
	calls := r.calls
	r.calls = nil
	return calls
}

// names returns the names of the objects that the handler has.
func (r *recorder) names() []string { return slices.Sorted(maps.Keys(r.objects)) }

// untilStable checks until all files are stable.
func untilStable(t testing.TB, f *follower) {
	t.Helper()
	for range 5 {
		stable, err := f.check(t.Context())
		if err != nil {
			t.Fatalf("check: %v", err)
		}
		if stable {
			return
		}
	}
	t.Fatal("not stable after five checks")
}

// follow starts to follow path without a clock: untilStable makes the checks.
func follow(t testing.TB, path string) (*follower, *recorder) {
	t.Helper()
	r := newRecorder(t)
	f, err := newFollower(&Watcher{Path: path, Handler: r})
	if err != nil {
		t.Fatalf("newFollower: %v", err)
	}
	return f, r
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
}

// load loads path and returns the handler.
func load(t testing.TB, path string) (*recorder, error) {
	t.Helper()
	r := newRecorder(t)
	err := (&Watcher{Path: path, Handler: r, Interval: time.Millisecond}).Load(context.Background())
	return r, err
}

// loadText reads a file a.yaml with the text.
func loadText(t testing.TB, text string) (*recorder, error) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "a.yaml", text)
	return load(t, filepath.Join(dir, "a.yaml"))
}

// errorLines returns the joined errors one by one.
func errorLines(err error) []string {
	var lines []string
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, e := range joined.Unwrap() {
			lines = append(lines, e.Error())
		}
	} else if err != nil {
		lines = append(lines, err.Error())
	}
	return lines
}

// sink hands the texts of the problems that are logged to keep, with " resolved" when they end.
type sink struct {
	logr.LogSink // no other method is called

	only string // the message
	keep func(text string)
}

func warnings(keep func(string)) logr.Logger {
	return logr.New(&sink{only: "manifest warning", keep: keep})
}

func (*sink) Init(logr.RuntimeInfo) {}
func (*sink) Enabled(int) bool      { return true }

func (s *sink) Error(err error, message string, place ...any) {
	if len(place) > 0 {
		doc := &DocumentError{File: fmt.Sprint(place[1]), Item: noItem, Err: err}
		doc.Line, _ = place[3].(int)
		if len(place) > 4 {
			doc.Item, _ = place[5].(int)
		}
		err = doc
	}
	if s.only == message {
		s.keep(err.Error())
	}
}

func (s *sink) Info(_ int, message string, place ...any) {
	if message, is := strings.CutSuffix(message, " resolved"); is {
		at := len(place) - 1
		s.Error(errors.New(fmt.Sprint(place[at])+" resolved"), message, place[:at-1]...)
	}
}

// service returns a Service as YAML.
func service(name string, port int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  ports:\n  - port: %d\n", name, port)
}

// TestScenarios plays the archives in testdata/scenarios. Their sections are
// read in order: at a section "look" the source checks until all files are stable; the section
// lists the calls of the handler since the last one, and all current problems and
// ignored kinds. A section "-NAME" deletes a file; any other one writes it.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/scenarios/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			testenv.NoError(t, err)
			playScenario(t, archive)
		})
	}
}

func playScenario(t *testing.T, archive *txtar.Archive) {
	dir := t.TempDir()
	f, r := follow(t, dir)
	looks := 0
	for _, section := range archive.Files {
		name, text := section.Name, string(section.Data)
		if name == "look" {
			looks++
			untilStable(t, f)
			want := strings.Split(strings.TrimSpace(text), "\n")
			got := append(r.take(), currentLines(f, dir)...)
			if len(got) == 0 {
				got = []string{""}
			}
			testenv.Same(t, want, got, "look %d", looks)
			continue
		}
		if name, ok := strings.CutPrefix(name, "-"); ok {
			testenv.NoError(t, os.Remove(filepath.Join(dir, name)))
			continue
		}
		testenv.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		write(t, dir, name, text)
	}
	if looks == 0 {
		t.Error("scenario without a look")
	}
}

// currentLines returns the current problems and ignored kinds.
func currentLines(f *follower, dir string) []string {
	var lines []string
	for _, line := range errorLines(f.problems()) {
		lines = append(lines, "problem "+strings.ReplaceAll(line, dir+string(filepath.Separator), ""))
	}
	ignored := f.summary(nil).Ignored
	for _, k := range slices.Sorted(maps.Keys(ignored)) {
		lines = append(lines, fmt.Sprintf("ignored %d %s", ignored[k], k))
	}
	return lines
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
