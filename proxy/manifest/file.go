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
	"slices"
	"time"
)

const (
	// maxFile bounds the size of a file.
	maxFile = 256 << 20
	// coarse is the coarsest modification time of a file system. A file can
	// change once more within it and look the same.
	coarse = 2 * time.Second
)

// state is what one look sees of a file: nothing if it is not there, the reason
// if that cannot be told.
type state struct {
	info fs.FileInfo
	err  error
}

// stateOf looks at a file, behind symbolic links.
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

// same says whether nothing hints at a change between two looks.
func (s state) same(o state) bool {
	switch {
	case s.err != nil || o.err != nil:
		return s.err != nil && o.err != nil && s.err.Error() == o.err.Error()
	case s.info == nil || o.info == nil:
		return s.info == nil && o.info == nil
	}
	return s.info.Size() == o.info.Size() && s.info.ModTime().Equal(o.info.ModTime()) && os.SameFile(s.info, o.info)
}

// file is what is known of a file.
type file struct {
	path string
	seen state // at the last look
	read state // that content stems from
	// recheck says that the file must be read again though it looks the same.
	recheck bool
	digest  digest // of the file's bytes; zero if they could not be read
	content
	// kept are objects that the file had and, having errors, does not show.
	kept []object
}

// errUnsteady says that a file changed while it was read.
var errUnsteady = errors.New("changed while it was read")

// load reads the file in the given state and says whether its content is new.
// The errors are the context's and errUnsteady.
func (f *file) load(ctx context.Context, s state) (changed bool, err error) {
	now := time.Now()
	data, err := readFile(f.path, s)
	if errors.Is(err, errUnsteady) {
		return false, err
	}
	f.read = s
	if err != nil {
		// That a file can be opened again, its state need not show.
		f.recheck = s.err == nil
		return f.unreadable(err), nil
	}
	f.recheck = now.Sub(s.info.ModTime()).Abs() < coarse
	sum := digest(sha256.Sum256(data))
	if sum == f.digest {
		return false, nil
	}
	next, err := readContent(ctx, f.path, data)
	if err != nil {
		return false, err
	}
	for i := range next.objects {
		next.objects[i].changed = s.info.ModTime().Unix()
	}
	f.digest = sum
	f.replace(next)
	return true, nil
}

// unreadable puts an error in the place of the content and says whether it is new.
func (f *file) unreadable(err error) (changed bool) {
	if f.digest == (digest{}) && f.bad() && f.errs[0].Err.Error() == err.Error() {
		return false
	}
	f.digest = digest{}
	f.replace(content{faults: faults{errs: []*DocumentError{{File: f.path, Item: noItem, Err: err}}}})
	return true
}

// replace puts new content in the place of the old. If it has errors, nothing
// is lost: what it lacks is kept.
func (f *file) replace(next content) {
	var kept []object
	if next.bad() {
		shown := make(map[key]bool, len(next.objects))
		for _, o := range next.objects {
			shown[o.key] = true
		}
		for _, o := range slices.Concat(f.objects, f.kept) {
			if !shown[o.key] {
				shown[o.key] = true
				kept = append(kept, o)
			}
		}
	}
	f.content, f.kept = next, kept
}

// readFile gives the bytes of a file that is in the given state.
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

// listFiles gives the paths of the files that count, in lexical order.
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

// counts says whether a file of a folder is read, by its name.
func counts(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return name[0] != '.'
	}
	return false
}
