package filestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
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
	full  int // of a frame

	mu     sync.Mutex
	file   *os.File
	head   head
	length int64 // of the file
	live   int64 // of these, what was needed when that was last found out
	buffer []byte
}

// openLog reads a file, and cuts off what a crash has left half written.
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
		if err := errors.Join(l.file.Truncate(l.length), l.file.Sync()); err != nil {
			return state, fmt.Errorf("cutting off a torn record: %w", err)
		}
	}
	if _, err := l.file.Seek(l.length, io.SeekStart); err != nil {
		return state, fmt.Errorf("opening the log: %w", err)
	}
	return state, nil
}

// liveSize is how long the changes are that make a state, without the frames around
// them.
func liveSize(s allocator.State) (size int64) {
	var b []byte
	for _, c := range s.Claims {
		b = appendChange(b[:0], allocator.Event{Claim: c})
		size += int64(len(b))
	}
	return size
}

// replay gives what a file says, and where its last sound frame ends.
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
		return h, state, end, errors.New("a record is broken that no crash could tear")
	case end < len(content) && h.hasFrame(content[end+1:]):
		return h, state, end, errors.New("a broken record is followed by sound ones")
	}
	state.Claims = slices.Collect(maps.Values(claims))
	return h, state, end, nil
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
	l.buffer = l.buffer[:0]
	for piece := range pieces(changes, l.full, true) {
		l.buffer = l.head.appendFrame(l.buffer, piece)
	}
	isWritten, err := l.compact(changes)
	if err != nil || isWritten {
		return err
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

// isTooLong reports whether the log would be, with what is in the buffer.
func (l *log) isTooLong() bool { return l.length+int64(len(l.buffer)) > 2*l.live+minSlack }

// compact writes the log anew if it has become too long: all that there is, and the
// changes that are not yet in it. As long as it can go on with the old one, it does
// not fail.
func (l *log) compact(changes []allocator.Event) (isWritten bool, err error) {
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
	all := append(snapshot(state), changes...)
	if err := writeNew(l.path, all, l.full); err != nil {
		// There may be room for these changes, if not for everything. The next try is
		// when the log has twice the length.
		l.live = l.length
		return false, nil //nolint:nilerr // Nothing has happened yet.
	}
	// Windows does not replace a file that is open.
	if err := l.shut(); err != nil {
		return false, err
	}
	if err := takePlace(l.path); err != nil {
		return false, fmt.Errorf("writing the log anew: %w", err)
	}
	return true, l.reopen()
}

// snapshot gives the changes that make the claims of a state. Its version, if the claim of
// that is gone, is lower than those of the changes that follow.
func snapshot(s allocator.State) []allocator.Event {
	changes := make([]allocator.Event, 0, len(s.Claims))
	for _, c := range s.Claims {
		changes = append(changes, allocator.Event{Claim: c})
	}
	return changes
}

// reopen opens what has taken the place of the file.
func (l *log) reopen() error {
	file, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening the new log: %w", err)
	}
	begin := make([]byte, headSize)
	_, err = io.ReadFull(file, begin)
	if err == nil {
		l.head, err = readHead(begin)
	}
	if err == nil {
		_, err = file.Seek(l.head.snapshot, io.SeekStart)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("opening the new log: %w", err), file.Close())
	}
	l.file, l.length = file, l.head.snapshot
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
