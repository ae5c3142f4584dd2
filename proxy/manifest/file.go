package manifest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	// maxFile bounds the size of a file.
	maxFile = 256 << 20
	// coarse is the coarsest resolution of modification times in file systems. A file can
	// change once more within it and have the same state.
	coarse = 2 * time.Second
)

// state is the state of a file, after symbolic links: info, or err if it cannot be read.
type state struct {
	info fs.FileInfo
	err  error
}

// same reports whether two states show no change.
func (s state) same(o state) bool {
	if s.info == nil || o.info == nil || s.err != nil || o.err != nil {
		return (s.info == nil) == (o.info == nil) && fmt.Sprint(s.err) == fmt.Sprint(o.err)
	}
	return s.info.Size() == o.info.Size() && s.info.ModTime().Equal(o.info.ModTime()) && os.SameFile(s.info, o.info)
}

// listing has the states of the files to read, by path.
type listing map[string]state

func (l listing) same(o listing) bool { return maps.EqualFunc(l, o, state.same) }

// list returns the files in a folder, or the one file.
func list(path string) (listing, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return listing{path: stateOf(path)}, nil
	}
	entries, err := os.ReadDir(path)
	all := listing{}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json":
			if file := filepath.Join(path, e.Name()); e.Name()[0] != '.' && !e.IsDir() {
				all[file] = stateOf(file)
			}
		}
	}
	return all, err
}

func stateOf(path string) state {
	info, err := os.Stat(path)
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("not a regular file")
	case info.Size() > maxFile:
		err = fmt.Errorf("too large: %d bytes, limit %d", info.Size(), maxFile)
	}
	return state{info: info, err: err}
}

// file is a file with its content.
type file struct {
	digest [sha256.Size]byte // of the file's bytes, or of the error if they could not be read
	content
}

// readFiles reads the files, and forgets files that are not listed. It leaves the paths out that waits names, and
// reports whether all files are still the same afterwards. The only error is the context's.
func (f *follower) readFiles(ctx context.Context, listed listing, waits func(path string) bool) (same bool, err error) {
	f.read = listed
	for _, path := range slices.Sorted(maps.Keys(listed)) {
		if waits(path) {
			f.read = nil
			continue
		}
		isSettled, err := f.readFile(ctx, path, listed[path])
		if err != nil {
			return false, err
		}
		if !isSettled {
			f.read = nil
		}
	}
	maps.DeleteFunc(f.files, func(path string, _ *file) bool {
		_, isListed := listed[path]
		isGone := !isListed && !waits(path)
		f.changed = f.changed || isGone
		return isGone
	})
	again, err := list(f.Path)
	if same = err == nil && listed.same(again); !same {
		f.read = nil // If the files become what they were, they have not been handed over.
	}
	return same, nil
}

// readFile reads one file, and sets f.changed if its content is new. It reports whether another read would find the
// same unless the state changes. The only error is the context's.
func (f *follower) readFile(ctx context.Context, path string, s state) (isSettled bool, err error) {
	isSettled = true
	var data []byte
	unreadable := s.err
	if s.err == nil {
		now := time.Now()
		data, unreadable = os.ReadFile(path)
		isSettled = unreadable == nil && now.Sub(s.info.ModTime()).Abs() >= coarse
	}
	var next content
	if unreadable != nil {
		data = []byte(unreadable.Error())
		next.errs = []*DocumentError{{File: path, Item: noItem, Err: unreadable}}
	}
	known, sum := f.files[path], sha256.Sum256(data)
	if known != nil && known.digest == sum {
		return isSettled, nil
	}
	if unreadable == nil {
		if next, err = readContent(ctx, path, data); err != nil {
			return false, err
		}
	}
	for i := range next.objects {
		next.objects[i].file, next.objects[i].changed = path, s.info.ModTime().Unix()
	}
	if known != nil && len(next.errs) > 0 {
		next.keep(known.objects)
	}
	f.files[path], f.changed = &file{sum, next}, true
	return isSettled, nil
}

// keep adds the earlier objects of a file that it lacks now.
func (c *content) keep(earlier []object) {
	shown := make(map[key]bool, len(c.objects))
	for _, o := range c.objects {
		shown[o.key] = true
	}
	for _, o := range earlier {
		if !shown[o.key] {
			shown[o.key], o.retained = true, true
			c.objects = append(c.objects, o)
		}
	}
}
