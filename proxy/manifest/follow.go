package manifest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/problemlog"
)

const (
	defaultInterval = time.Second
	// A check confirms a change interval/confirmFraction after the check that found it.
	confirmFraction = 10
	// firstChecks is how many checks at the start wait for files that are being
	// written.
	firstChecks = 10
)

// follower is the state of one Run or Load.
type follower struct {
	*Watcher
	stat   func(path string) state // stateOf, except in tests
	files  map[string]*file
	held   map[key]metav1.Object // what the handler has
	synced bool
	checks int // checks without pathErr
	// pathErr is the error of reading Path.
	pathErr    error
	duplicates []*DocumentError
	warnings   []*DocumentError // about objects of several files
	unassigned []*DocumentError // of Services that wait for Assign
	reported   problemlog.Log[error]
	warned     problemlog.Log[error]
}

func newFollower(s *Watcher) (*follower, error) {
	switch {
	case s.Path == "":
		return nil, errors.New("manifest: Watcher.Path is required")
	case s.Handler == nil:
		return nil, errors.New("manifest: Watcher.Handler is required")
	case s.Interval < 0:
		return nil, errors.New("manifest: Watcher.Interval is negative")
	}
	return &follower{Watcher: s, stat: stateOf, files: make(map[string]*file), held: make(map[key]metav1.Object)}, nil
}

// wait waits until the next check.
func (f *follower) wait(ctx context.Context, stable bool) error {
	d := cmp.Or(f.Interval, defaultInterval)
	if !stable {
		d = max(d/confirmFraction, 1)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// check compares the files with their last content. The first time it hands over all objects,
// and later those of files that had the same state at two checks in a row. It reports whether
// all files are stable. The only error is the context's.
func (f *follower) check(ctx context.Context) (stable bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	listed, ok := f.list()
	if !ok {
		return true, nil
	}
	f.checks++
	stable, changed := true, !f.synced
	for _, path := range f.paths() {
		var s state
		if _, ok := slices.BinarySearch(listed, path); ok {
			s = f.stat(path)
		}
		isStable, isChanged, err := f.refresh(ctx, f.files[path], s)
		if err != nil {
			return false, err
		}
		stable, changed = stable && isStable, changed || isChanged
	}
	if !f.synced && !stable {
		return false, nil
	}
	if changed || len(f.unassigned) > 0 {
		if err := f.handOver(ctx, changed); err != nil {
			return false, err
		}
	}
	return stable, nil
}

// list adds new files and returns the paths of those to read, in order. It reports whether Path can be
// read, and sets pathErr.
func (f *follower) list() (paths []string, ok bool) {
	paths, f.pathErr = listFiles(f.Path)
	for _, path := range paths {
		if f.files[path] == nil {
			f.files[path] = &file{path: path}
		}
	}
	return paths, f.pathErr == nil
}

// refresh checks one file. It reports whether the file is stable, so that no further
// check is needed soon, and whether its content changed.
func (f *follower) refresh(ctx context.Context, file *file, s state) (stable, changed bool, err error) {
	before := file.seen
	file.seen = s
	switch {
	case f.synced && !s.same(before) && !s.same(file.read):
		return false, false, nil
	case s.absent():
		delete(f.files, file.path)
		return true, !file.read.absent(), nil
	case s.same(file.read):
		return true, false, nil
	}
	changed, err = file.load(ctx, s, !f.synced && f.checks >= firstChecks)
	if errors.Is(err, errUnsteady) {
		return false, false, nil
	}
	return true, changed, err
}

func (f *follower) paths() []string { return slices.Sorted(maps.Keys(f.files)) }
