package manifest

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestLoadErrorsAreTyped(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("web", 80)+"---\nkind: List\napiVersion: v1\nitems:\n- {apiVersion: v1, kind: Node}\n")
	r, err := load(t, dir)
	var got *DocumentError
	if !errors.As(err, &got) {
		t.Fatalf("Load: got error %v, want a DocumentError", err)
	}
	if got.Err == nil || got.Err.Error() != "Node without metadata.name" {
		t.Errorf("got reason %v, want that the name is missing", got.Err)
	}
	got.Err = nil
	want := &DocumentError{File: filepath.Join(dir, "a.yaml"), Line: 12, Item: 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	testenv.Same(t, []string{"update Service default/web", "synced"}, r.calls, "calls")
}

func TestLoadWithoutPath(t *testing.T) {
	r, err := load(t, filepath.Join(t.TempDir(), "missing"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load: %v, want %v", err, fs.ErrNotExist)
	}
	if r.synced {
		t.Error("Synced was called, want no call before Path can be read")
	}
}

// The caller of Load logs that Path cannot be read, and other errors of the files have lines.
func TestLoadLogsErrorsOfFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "bad.yaml", "apiVersion: v1\nkind: Service\n")
	for path, want := range map[string]int{filepath.Join(dir, "missing"): 0, dir: 1} {
		lines := 0
		s := &Watcher{Path: path, Handler: newRecorder(t), Logger: funcr.New(func(string, string) { lines++ }, funcr.Options{})}
		if err := s.Load(t.Context()); err == nil || lines != want {
			t.Errorf("%s: got error %v and %d lines, want an error and %d lines", path, err, lines, want)
		}
	}
}

// canceler ends the context at the first Service.
type canceler struct {
	*recorder
	cancel context.CancelFunc
}

func (c *canceler) UpdateService(s *v1.Service) {
	c.recorder.UpdateService(s)
	c.cancel()
}

func TestLoadCanceled(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("one", 80)+"---\n"+service("two", 80))
	ctx, cancel := context.WithCancel(t.Context())
	r := &canceler{newRecorder(t), cancel}
	s := &Watcher{Path: dir, Handler: r}
	for _, want := range [][]string{{"update Service default/one"}, nil} {
		if err := s.Load(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Load: %v, want %v", err, context.Canceled)
		}
		testenv.Same(t, want, r.take(), "calls")
	}
}

// A path that is not a readable file is an error, and its objects are kept.
func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("web", 80))
	f, r := follow(t, dir)
	untilStable(t, f)
	r.take()
	path := filepath.Join(dir, "a.yaml")
	for _, c := range []struct {
		name, reason string
		replace      func() error
	}{
		{"too large", "too large", func() error { return os.Truncate(path, maxFile+1) }},
		{"loop", "", func() error { return errors.Join(os.Remove(path), os.Symlink("a.yaml", path)) }},
		{"link to nothing", "no such file", func() error { return errors.Join(os.Remove(path), os.Symlink("b", path)) }},
		{"socket", "not a regular file", func() error {
			l, err := net.Listen("unix", path+".socket")
			if err != nil {
				return err
			}
			testenv.CloseAtEnd(t, l)
			return errors.Join(os.Remove(path), os.Symlink("a.yaml.socket", path))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			testenv.NoError(t, c.replace())
			untilStable(t, f)
			if calls := r.take(); len(calls) > 0 {
				t.Errorf("got calls %q, want none", calls)
			}
			err := f.problems()
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("got problems %v, want %q", err, c.reason)
			}
		})
	}
	testenv.NoError(t, os.Remove(path))
	write(t, dir, "a.yaml", service("web", 80))
	untilStable(t, f)
	if err := f.problems(); err != nil || len(r.calls) > 0 {
		t.Errorf("with the first content again: got problems %v and calls %q, want none", err, r.calls)
	}
	testenv.NoError(t, os.Remove(path))
	untilStable(t, f)
	testenv.Same(t, []string{"delete Service default/web"}, r.take(), "calls after deletion")
}

// asking calls a function when it is asked whether it has ended.
type asking struct {
	context.Context
	asked func()
}

func (a asking) Err() error { a.asked(); return a.Context.Err() }

// A file that changes while it is read is read again before anything is handed over.
func TestChangeDuringARead(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("web", 80))
	f, r := follow(t, dir)
	if _, err := f.check(t.Context()); err != nil {
		t.Fatalf("check: %v", err)
	}
	asked := 0
	ctx := asking{t.Context(), func() {
		if asked++; asked == 2 { // The first question is at the start of the check.
			write(t, dir, "a.yaml", service("web", 8080))
		}
	}}
	if stable, err := f.check(ctx); err != nil || stable || asked != 2 || len(r.calls) > 0 {
		t.Errorf("got stable %v, error %v and calls %q, want that nothing is handed over", stable, err, r.calls)
	}
	untilStable(t, f)
	if got := r.objects["Service default/web"]; !strings.Contains(got, "8080") {
		t.Errorf("got %s, want the new port", got)
	}
}

// A file that exists only while the others are read does not keep them from being handed over.
func TestFileComesAndGoesDuringARead(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("web", 80))
	past := time.Now().Add(-time.Hour)
	testenv.NoError(t, os.Chtimes(filepath.Join(dir, "a.yaml"), past, past)) // A younger file is read again anyway.
	f, r := follow(t, dir)
	if _, err := f.check(t.Context()); err != nil {
		t.Fatalf("check: %v", err)
	}
	asked := 0
	ctx := asking{t.Context(), func() {
		if asked++; asked == 2 {
			write(t, dir, "b.yaml", "")
		}
	}}
	if stable, err := f.check(ctx); err != nil || stable {
		t.Errorf("got stable %v and error %v, want neither", stable, err)
	}
	testenv.NoError(t, os.Remove(filepath.Join(dir, "b.yaml")))
	untilStable(t, f)
	testenv.Same(t, []string{"update Service default/web", "synced"}, r.take(), "calls")
}

// Reading a file stops when the context ends.
func TestReadContentCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, text := range []string{
		service("web", 80),
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: web}}\n",
		`{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}]}`,
	} {
		if _, err := readContent(ctx, "a.yaml", []byte(text)); !errors.Is(err, context.Canceled) {
			t.Errorf("%.20q: got error %v, want %v", text, err, context.Canceled)
		}
	}
}

// A file that changes at each check is read after a bounded number of checks at the start. Later it keeps its
// objects, as it may be half written, and the changes of other files wait for a bounded number of checks.
func TestRestlessFiles(t *testing.T) {
	dir := t.TempDir()
	f, r := follow(t, dir)
	for port, want := range [][]string{{"update Service default/web", "synced"}, {"update Service default/other"}} {
		if port == 1 {
			write(t, dir, "b.yaml", service("other", 80))
		}
		for check := range maxWaits + 1 {
			if calls := r.take(); len(calls) > 0 {
				t.Errorf("got calls %q after %d checks, want none", calls, check)
			}
			write(t, dir, "a.yaml", service("web", 80+port)+strings.Repeat("\n", check))
			if stable, err := f.check(t.Context()); err != nil || stable != (check == maxWaits) {
				t.Errorf("check %d: got stable %v and error %v", check, stable, err)
			}
		}
		testenv.Same(t, want, r.take(), "calls")
	}
}

// A file that changes twice within one tick of its file system's clock has the same state after
// the second change.
func TestCoarseClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "a.yaml")
		now := time.Now()
		stamped := func(port int) {
			t.Helper()
			write(t, dir, "a.yaml", service("web", port))
			testenv.NoError(t, os.Chtimes(path, now, now))
		}
		stamped(80)
		f, r := follow(t, dir)
		untilStable(t, f)
		r.take()
		time.Sleep(coarse / 2)
		stamped(81)
		untilStable(t, f)
		testenv.Same(t, []string{"update Service default/web"}, r.take(), "calls")
		time.Sleep(coarse)
		untilStable(t, f)
		if f.read == nil {
			t.Error("an unchanged file is read at each check, want once")
		}
	})
}

// Objects have no room that the decoder left: with ten endpoints that was a third.
func TestNoSpareRoom(t *testing.T) {
	const text = `{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "a", "labels": {"kubernetes.io/service-name": "a"}}, "endpoints": [` +
		`{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}, {"addresses": ["10.0.0.3"]}, {"addresses": ["10.0.0.4"]}, {"addresses": ["10.0.0.5"]}]}`
	c, err := readContent(t.Context(), "a.json", []byte(text))
	if err != nil || len(c.objects) != 1 {
		t.Fatalf("readContent: got %d objects, errors %v, error %v, want an object", len(c.objects), c.errs, err)
	}
	slice, _ := c.objects[0].value.(*discoveryv1.EndpointSlice)
	testenv.Same(t, 5, cap(slice.Endpoints), "room for endpoints")
	testenv.Same(t, 1, cap(slice.Endpoints[4].Addresses), "room for addresses")
}

// An item of a List that cannot be converted is an error with its line, and all other items are read.
func TestBadItem(t *testing.T) {
	r, err := loadText(t, `apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: one}}
- apiVersion: v1
  kind: Node
  metadata: {name: two, name: two}
- {apiVersion: v1, kind: Node, metadata: {name: three}}
`)
	if want := `a.yaml:7: items[1]: mapping key "name" already defined`; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got error %v, want %s", err, want)
	}
	if got, want := r.names(), []string{"Node one", "Node three"}; !slices.Equal(got, want) {
		t.Errorf("got objects %q, want %q", got, want)
	}
}
