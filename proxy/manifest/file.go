package manifest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
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
// exist, and err if that is unknown.
type state struct {
	info fs.FileInfo
	err  error
}

// stateOf returns the state of a file, after symbolic links.
func stateOf(path string) state {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return state{}
		}
	}
	switch {
	case err != nil:
		return state{err: err}
	case info.IsDir():
		return state{}
	case !info.Mode().IsRegular():
		return state{err: errors.New("not a regular file")}
	}
	return state{info: info}
}

func (s state) absent() bool { return s.info == nil && s.err == nil }

// same reports whether two states show no change.
func (s state) same(o state) bool {
	switch {
	case s.err != nil || o.err != nil:
		return s.err != nil && o.err != nil && s.err.Error() == o.err.Error()
	case s.info == nil || o.info == nil:
		return s.info == nil && o.info == nil
	}
	return s.info.Size() == o.info.Size() && s.info.ModTime().Equal(o.info.ModTime()) && os.SameFile(s.info, o.info)
}

// file is a file with its content.
type file struct {
	path   string
	seen   state             // at the last check
	read   state             // for which the content is right; it has errUnsteady if there is none
	digest [sha256.Size]byte // of the file's bytes; zero if they could not be read
	content
}

// errUnsteady means that a file changed while it was read.
var errUnsteady = errors.New("changed while it was read")

// load reads the file in the given state and reports whether its content is new. The
// errors are the context's and errUnsteady.
func (f *file) load(ctx context.Context, s state) (changed bool, err error) {
	now := time.Now()
	data, err := readFile(f.path, s)
	if errors.Is(err, errUnsteady) {
		return false, err
	}
	f.read = s
	if s.err == nil && (err != nil || now.Sub(s.info.ModTime()).Abs() < coarse) {
		// The state may stay the same when the file can be opened again or changes again.
		f.read = state{err: errUnsteady}
	}
	if err != nil {
		return f.unreadable(err), nil
	}
	sum := sha256.Sum256(data)
	if sum == f.digest {
		return false, nil
	}
	next, err := readContent(ctx, f.path, data, f.objects)
	if err != nil {
		return false, err
	}
	for i := range next.objects {
		next.objects[i].file, next.objects[i].changed = f.path, s.info.ModTime().Unix()
	}
	f.digest = sum
	f.replace(next)
	return true, nil
}

// unreadable replaces the content by an error and reports whether that is new.
func (f *file) unreadable(err error) (changed bool) {
	none := [sha256.Size]byte{}
	if f.digest == none && f.bad() && f.errs[0].Err.Error() == err.Error() {
		return false
	}
	f.digest = none
	f.replace(content{errs: []*DocumentError{{File: f.path, Item: noItem, Err: err}}})
	return true
}

// replace replaces the content. If the new one has errors, the objects that it lacks are
// kept.
func (f *file) replace(next content) {
	if next.bad() {
		shown := make(map[key]bool, len(next.objects))
		for _, o := range next.objects {
			shown[o.key] = true
		}
		for _, o := range f.objects {
			if !shown[o.key] {
				shown[o.key], o.kept = true, true
				next.objects = append(next.objects, o)
			}
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
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errUnsteady
	} else if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var b bytes.Buffer
	b.Grow(int(s.info.Size()) + bytes.MinRead)
	if n, err := b.ReadFrom(io.LimitReader(f, maxFile+1)); err != nil {
		return nil, err
	} else if n > maxFile {
		return nil, fmt.Errorf("too large: limit %d bytes", maxFile)
	}
	after, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !s.same(state{info: after}) {
		return nil, errUnsteady
	}
	return b.Bytes(), nil
}

// listFiles returns the paths of the files to read, in lexical order.
func listFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, e := range entries {
		if counts(e.Name()) {
			paths = append(paths, filepath.Join(path, e.Name()))
		}
	}
	return paths, nil
}

// counts reports whether a file of a folder is read, by its name.
func counts(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return name[0] != '.'
	}
	return false
}
