package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/vipkit/vipkit/allocator"
)

// minSlack is how much longer than needed a log may always be, in bytes.
const minSlack = 1 << 20

// log is an open file. It is the journal of a [allocator.Memory].
type log struct {
	path  string
	state func(context.Context) (allocator.State, error)

	mu     sync.Mutex
	file   *os.File
	length int64 // of the file
	dense  int64 // length when it was last written anew
	buffer []byte
}

// openLog reads a file, and cuts off what a crash has left half written.
func openLog(path string) (*log, allocator.State, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, allocator.State{}, fmt.Errorf("opening the log: %w", err)
	}
	l := &log{path: path, file: file}
	state, err := l.read()
	if err != nil {
		return nil, state, errors.Join(err, file.Close())
	}
	return l, state, nil
}

func (l *log) read() (allocator.State, error) {
	content, err := io.ReadAll(l.file)
	if err != nil {
		return allocator.State{}, fmt.Errorf("reading the log: %w", err)
	}
	state, end, err := replay(content)
	if err != nil {
		return state, &CorruptError{Path: l.path, Offset: int64(end), Err: err}
	}
	l.length, l.dense = int64(end), int64(end)
	if end < len(content) {
		if err := errors.Join(l.file.Truncate(l.length), l.file.Sync()); err != nil {
			return state, fmt.Errorf("cutting off a torn record: %w", err)
		}
	}
	if _, err := l.file.Seek(l.length, io.SeekStart); err != nil {
		return state, fmt.Errorf("opening the log: %w", err)
	}
	return state, nil
}

// replay gives what a file says, and where its last sound frame ends.
func replay(content []byte) (state allocator.State, end int, err error) {
	if !bytes.HasPrefix(content, []byte(header)) {
		return state, 0, errors.New("this is no log of allocations")
	}
	claims := map[allocator.Key]allocator.Claim{}
	for end = len(header); end < len(content); {
		body, length := readFrame(content[end:])
		if length == 0 {
			break
		}
		changes, err := readChanges(body)
		if err != nil {
			return state, end, err
		}
		state.Version = max(state.Version, apply(changes, claims))
		end += length
	}
	if end < len(content) && hasFrame(content[end+1:]) {
		return state, end, errors.New("a broken record is followed by sound ones")
	}
	state.Claims = slices.Collect(maps.Values(claims))
	return state, end, nil
}

// apply makes changes, and gives the highest version of them.
func apply(changes []allocator.Event, claims map[allocator.Key]allocator.Claim) (version allocator.Version) {
	for _, e := range changes {
		version = max(version, e.Claim.Version)
		if e.Deleted {
			delete(claims, e.Claim.Key)
		} else {
			claims[e.Claim.Key] = e.Claim
		}
	}
	return version
}

// Append implements [allocator.Journal].
func (l *log) Append(changes []allocator.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return ErrClosed
	}
	l.buffer = appendFrame(l.buffer[:0], changes)
	if l.length+int64(len(l.buffer)) > 2*l.dense+minSlack {
		return l.compact()
	}
	n, err := l.file.Write(l.buffer)
	l.length += int64(n)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("writing the log: %w", err)
	}
	return nil
}

// compact writes the log anew: all that there is, then what is in the buffer.
func (l *log) compact() error {
	state, err := l.state(context.Background())
	if err != nil {
		return err
	}
	content := []byte(header)
	// The version of the last change must survive even if its claim is gone: a
	// deletion of nothing keeps it.
	changes := []allocator.Event{{Claim: allocator.Claim{Key: allocator.PortKey(1), Version: state.Version}, Deleted: true}}
	for _, c := range state.Claims {
		changes = append(changes, allocator.Event{Claim: c})
	}
	content = appendFrame(content, changes)
	content = append(content, l.buffer...)
	// Windows does not replace a file that is open.
	if err := l.shut(); err != nil {
		return err
	}
	if err := replaceFile(l.path, content); err != nil {
		return fmt.Errorf("writing the log anew: %w", err)
	}
	if l.file, err = os.OpenFile(l.path, os.O_RDWR|os.O_APPEND, 0); err != nil {
		return fmt.Errorf("opening the new log: %w", err)
	}
	l.length, l.dense = int64(len(content)), int64(len(content))
	return nil
}

func (l *log) shut() error {
	file := l.file
	l.file = nil
	if file == nil {
		return nil
	}
	return file.Close()
}

func (l *log) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shut()
}

// replaceFile puts a file with a content in the place of another one, in one
// step, and waits until that is on the disk.
func replaceFile(path string, content []byte) error {
	file, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}
