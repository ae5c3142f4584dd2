package manifest

import (
	"cmp"
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/problemlog"
)

const (
	defaultInterval = time.Second
	// A check confirms a change interval/confirmFraction after the check that found it.
	confirmFraction = 10
	// maxWaits bounds the checks in a row that wait for files that change all the time: they take ten intervals.
	maxWaits = 10 * confirmFraction
)

// follower is the state of one Run or Load.
type follower struct {
	*Watcher
	files map[string]*file
	// seen are the files at the last check; read are those whose content files has, nil if they must be read again.
	seen, read listing
	waits      int                   // checks in a row that have waited
	changed    bool                  // files has content that has not been handed over
	handed     map[key]metav1.Object // what the handler has; nil before the first objects
	pathErr    error                 // of reading Path
	duplicates []*DocumentError
	warnings   []*DocumentError // about objects of several files
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
	return &follower{Watcher: s, files: make(map[string]*file)}, nil
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

// check hands over what has changed in the files, if they had the same states at two checks in a row, or
// change all the time. It reports whether they are stable. The only error is the context's.
func (f *follower) check(ctx context.Context) (stable bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	listed, ok := f.list()
	if !ok {
		return true, nil
	}
	before := f.seen
	stable = before != nil && listed.same(before)
	f.seen = listed
	if stable && f.read != nil && listed.same(f.read) {
		return true, nil
	}
	isLast := f.waits >= maxWaits
	if stable || isLast {
		// A file that is being written keeps the objects that were handed over.
		waits := func(path string) bool { return f.handed != nil && !listed[path].same(before[path]) }
		if stable, err = f.readFiles(ctx, listed, waits); err != nil {
			return false, err
		}
	}
	if f.waits++; !stable && !isLast {
		return false, nil
	}
	f.waits = 0
	if f.changed || f.handed == nil {
		return stable, f.handOver(ctx)
	}
	return stable, nil
}

// list lists the files. It reports whether Path can be read, and sets pathErr.
func (f *follower) list() (listed listing, ok bool) {
	listed, f.pathErr = list(f.Path)
	return listed, f.pathErr == nil
}
