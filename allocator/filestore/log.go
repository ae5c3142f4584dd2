package filestore

import (
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

// minSlack is how many bytes a log may always be longer than needed.
const minSlack = 1 << 20

// log is an open file. It is the journal of a [allocator.Memory].
type log struct {
	path  string
	state func(context.Context) (allocator.State, error)
	full  int // of a frame

	mu     sync.Mutex
	file   *os.File // nil if it could not be opened again, and after close
	closed bool
	head   head
	length int64 // of what was appended without an error
	live   int64 // bytes that the claims need, when last computed
	buffer []byte
}

// openLog reads a file, and truncates a frame that a crash has torn.
func openLog(path string) (*log, allocator.State, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, allocator.State{}, fmt.Errorf("opening the log: %w", err)
	}
	l := &log{path: path, file: file, full: fullFrame}
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
	head, state, end, err := replay(content)
	if err != nil {
		return state, &CorruptError{Path: l.path, Offset: int64(end), Err: err}
	}
	l.head, l.length, l.live = head, int64(end), liveSize(state)
	if end < len(content) {
		return state, l.truncate()
	}
	return state, nil
}

// liveSize is the length of the changes that make a state, without frames.
func liveSize(s allocator.State) (size int64) {
	var b []byte
	for _, c := range s.Claims {
		b = appendChange(b[:0], allocator.Event{Claim: c})
		size += int64(len(b))
	}
	return size
}

// replay returns the header and the state of a file, and where its last valid frame ends.
func replay(content []byte) (h head, state allocator.State, end int, err error) {
	if h, err = readHead(content); err != nil {
		return h, state, 0, err
	}
	claims := map[allocator.Key]allocator.Claim{}
	for end = headSize; end < len(content); {
		body, length := h.readFrame(content[end:])
		if length == 0 {
			break
		}
		changes, err := readChanges(body)
		if err != nil {
			return h, state, end, err
		}
		state.Version = max(state.Version, apply(changes, claims))
		end += length
	}
	switch {
	case int64(end) < h.snapshot:
		return h, state, end, errors.New("a record of the snapshot is damaged, which no crash can do")
	case end < len(content) && h.hasFrame(content[end+1:]):
		return h, state, end, errors.New("a damaged record is followed by valid ones")
	}
	state.Claims = slices.Collect(maps.Values(claims))
	return h, state, end, nil
}

// apply applies changes to claims, and gives their highest version.
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
	if l.closed {
		return ErrClosed
	}
	ends := l.encode(changes)
	isReplaced, err := l.compact()
	if err != nil {
		return err
	}
	if isReplaced {
		ends = l.encode(changes) // with the salt of the new log
	}
	// A frame is on the disk before the next one is written: a crash that leaves a torn frame
	// before a valid one would look like damage.
	begin := 0
	for _, end := range ends {
		_, err := l.file.Write(l.buffer[begin:end])
		if err == nil {
			err = l.file.Sync()
		}
		if err != nil {
			return fmt.Errorf("writing the log: %w", err)
		}
		begin = end
	}
	l.length += int64(len(l.buffer))
	return nil
}

// encode puts the frames of changes into the buffer, and returns where each ends.
func (l *log) encode(changes []allocator.Event) (ends []int) {
	l.buffer = l.buffer[:0]
	for piece := range pieces(changes, l.full, true) {
		l.buffer = l.head.appendFrame(l.buffer, piece)
		ends = append(ends, len(l.buffer))
	}
	return ends
}

// Rollback implements [allocator.Journal].
func (l *log) Rollback() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return ErrClosed
	case l.file == nil:
		return l.reopen()
	}
	return l.truncate()
}

// truncate removes what follows the length.
func (l *log) truncate() error {
	if err := errors.Join(l.file.Truncate(l.length), l.file.Sync()); err != nil {
		return fmt.Errorf("truncating a torn record: %w", err)
	}
	if _, err := l.file.Seek(l.length, io.SeekStart); err != nil {
		return fmt.Errorf("truncating a torn record: %w", err)
	}
	return nil
}

// isTooLong reports whether the log with the buffer would be too long.
func (l *log) isTooLong() bool { return l.length+int64(len(l.buffer)) > 2*l.live+minSlack }

// compact replaces the log by a new one with all claims if it is too long. It does not fail as long
// as the old log can be continued. After an error both logs have the same claims, so that reopen can
// take either.
func (l *log) compact() (isReplaced bool, err error) {
	if !l.isTooLong() {
		return false, nil
	}
	state, err := l.state(context.Background())
	if err != nil {
		return false, err
	}
	if l.live = liveSize(state); !l.isTooLong() {
		return false, nil
	}
	if err := writeNew(l.path, snapshot(state), l.full); err != nil {
		// The disk may have room for the next changes, if not for all claims. compact tries
		// again when the log has twice the length.
		l.live = l.length
		return false, nil //nolint:nilerr // The old log is unchanged.
	}
	// Windows does not replace a file that is open.
	if err := l.shut(); err != nil {
		return false, err
	}
	if err := renameNew(l.path); err != nil {
		return false, fmt.Errorf("replacing the log: %w", err)
	}
	return true, l.reopen()
}

// snapshot returns the changes that make a state. The first one, a deletion, has its version: the
// claim with that version may be deleted.
func snapshot(s allocator.State) []allocator.Event {
	changes := make([]allocator.Event, 1, len(s.Claims)+1)
	changes[0] = allocator.Event{Claim: allocator.Claim{Key: allocator.PortKey(1), Version: s.Version}, Deleted: true}
	for _, c := range s.Claims {
		changes = append(changes, allocator.Event{Claim: c})
	}
	return changes
}

// reopen opens the file: the log that was open before, or the one that compact has written.
func (l *log) reopen() error {
	if err := syncFolder(filepath.Dir(l.path)); err != nil {
		return fmt.Errorf("opening the log again: %w", err)
	}
	file, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening the log again: %w", err)
	}
	begin := make([]byte, headSize)
	h := head{}
	if _, err = io.ReadFull(file, begin); err == nil {
		h, err = readHead(begin)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("opening the log again: %w", err), file.Close())
	}
	if l.file = file; h != l.head {
		l.head, l.length = h, h.snapshot
	}
	return l.truncate()
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
	l.closed = true
	return l.shut()
}
