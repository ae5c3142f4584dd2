package manifest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// maxFile bounds the size of a file.
	maxFile = 256 << 20
	// coarse is the coarsest resolution of modification times in file systems. A file can
	// change once more within it and have the same state.
	coarse = 2 * time.Second
)

// state is the state of a file at one check: neither field is set if the file does not
// exist, and err if it cannot be read.
type state struct {
	info fs.FileInfo
	err  error
}

// stateOf returns the state of a file that is listed, after symbolic links.
func stateOf(path string) state {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return state{err: err}
	}
	return state{info: info}
}

func (s state) absent() bool { return s.info == nil && s.err == nil }

// same reports whether two states show no change.
func (s state) same(o state) bool {
	switch {
	case s.err != nil && o.err != nil:
		return s.err.Error() == o.err.Error()
	case s.info != nil && o.info != nil:
		return s.info.Size() == o.info.Size() && s.info.ModTime().Equal(o.info.ModTime()) && os.SameFile(s.info, o.info)
	}
	return s.absent() && o.absent()
}

// file is a file with its content.
type file struct {
	path   string
	seen   state             // at the last check
	read   state             // for which the content is right; it has errUnsteady if there is none
	digest [sha256.Size]byte // of the file's bytes, or of the error if they could not be read
	content
}

// errUnsteady means that a file changed while it was read.
var errUnsteady = errors.New("changed while it was read")

// load reads the file in the given state and reports whether its content is new. The errors are the
// context's and, unless this is the last attempt, errUnsteady.
func (f *file) load(ctx context.Context, s state, last bool) (changed bool, err error) {
	now := time.Now()
	data, unreadable := readFile(f.path, s)
	if errors.Is(unreadable, errUnsteady) && !last {
		return false, errUnsteady
	}
	f.read = s
	if s.err == nil && (unreadable != nil || now.Sub(s.info.ModTime()).Abs() < coarse) {
		// The state may stay the same when the file can be opened again or changes again.
		f.read = state{err: errUnsteady}
	}
	var next content
	if unreadable != nil {
		data = []byte(unreadable.Error())
		next.errs = []*DocumentError{{File: f.path, Item: noItem, Err: unreadable}}
	}
	sum := sha256.Sum256(data)
	if sum == f.digest {
		return false, nil
	}
	if unreadable == nil {
		if next, err = readContent(ctx, f.path, data); err != nil {
			return false, err
		}
		for i := range next.objects {
			next.objects[i].file, next.objects[i].changed = f.path, s.info.ModTime().Unix()
		}
	}
	f.digest = sum
	f.replace(next)
	return true, nil
}

// replace replaces the content. If the new one has errors, the objects that it lacks are kept.
func (f *file) replace(next content) {
	shown := make(map[key]bool, len(next.objects))
	for _, o := range next.objects {
		shown[o.key] = true
	}
	for _, o := range f.objects {
		if len(next.errs) > 0 && !shown[o.key] {
			shown[o.key], o.kept = true, true
			next.objects = append(next.objects, o)
		}
	}
	f.content = next
}

// readFile returns the bytes of a file that is in the given state.
func readFile(path string, s state) (data []byte, err error) {
	if s.err != nil {
		return nil, s.err
	}
	if size := s.info.Size(); size > maxFile {
		return nil, fmt.Errorf("too large: %d bytes, limit %d", size, maxFile)
	}
	data, err = os.ReadFile(path)
	if !s.same(stateOf(path)) {
		return nil, errUnsteady
	}
	return data, err
}

// listFiles returns the paths of the files to read: those in a folder, by their names, or the file.
func listFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	var paths []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json":
			if e.Name()[0] != '.' && !e.IsDir() {
				paths = append(paths, filepath.Join(path, e.Name()))
			}
		}
	}
	return paths, err
}
