package manifest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"
)

const (
	defaultInterval = time.Second
	// settleFraction of the interval passes between the look that sees a
	// change and the look that confirms it.
	settleFraction = 10
	// patience is how many looks at first wait for files that are being written.
	patience = 10
)

// follower is the state of one Run or Load.
type follower struct {
	*Source
	stat   func(path string) state // stateOf, except in tests
	files  map[string]*file
	told   map[key]digest // what the handler has
	synced bool
	looks  int // without pathErr
	// pathErr is why Path cannot be read; twice is what stands in two places.
	pathErr  error
	twice    []*DocumentError
	reported string
}

func newFollower(s *Source) (*follower, error) {
	switch {
	case s.Path == "":
		return nil, errors.New("manifest: Source without Path")
	case s.Handler == nil:
		return nil, errors.New("manifest: Source without Handler")
	case s.Interval < 0:
		return nil, errors.New("manifest: Source with a negative Interval")
	}
	return &follower{Source: s, stat: stateOf, files: make(map[string]*file), told: make(map[key]digest)}, nil
}

// wait lets the time to the next look pass.
func (f *follower) wait(ctx context.Context, settled bool) error {
	d := cmp.Or(f.Interval, defaultInterval)
	if !settled {
		d = max(d/settleFraction, 1)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// look compares the files with what was read and acts on what is settled: on
// everything at first, and later on what two looks in a row saw alike. It says
// whether there is nothing to wait for. The only error is the context's.
func (f *follower) look(ctx context.Context) (settled bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if !f.list() {
		f.report()
		return true, nil
	}
	f.looks++
	settled, changed := true, !f.synced
	for _, path := range f.paths() {
		calm, news, err := f.refresh(ctx, f.files[path])
		if err != nil {
			return false, err
		}
		settled = settled && calm
		changed = changed || news
	}
	if !f.synced && !settled {
		return false, nil
	}
	if changed {
		if err := f.handOver(ctx); err != nil {
			return false, err
		}
	}
	f.report()
	return settled, nil
}

// list takes in files that are new. It says whether Path can be read; pathErr
// says why not.
func (f *follower) list() bool {
	var paths []string
	paths, f.pathErr = listFiles(f.Path)
	for _, path := range paths {
		if f.files[path] == nil {
			f.files[path] = &file{path: path}
		}
	}
	return f.pathErr == nil
}

// refresh looks at one file. It says whether the file is calm, so that there is
// no reason to look again soon, and whether its content changed.
func (f *follower) refresh(ctx context.Context, file *file) (calm, changed bool, err error) {
	s, before := f.stat(file.path), file.seen
	file.seen = s
	switch {
	case s.absent() && file.read.absent():
		delete(f.files, file.path)
		return true, false, nil
	case s.same(file.read) && !file.recheck:
		return true, false, nil
	case f.synced && !s.same(before):
		return false, false, nil
	case s.absent():
		delete(f.files, file.path)
		return true, true, nil
	}
	changed, err = file.load(ctx, s)
	switch {
	case !errors.Is(err, errUnsteady):
		return true, changed, err
	case !f.synced && f.looks >= patience:
		return true, file.unreadable(err), nil
	}
	return false, false, nil
}

func (f *follower) paths() []string { return slices.Sorted(maps.Keys(f.files)) }
