package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"sync"

	"github.com/vipkit/vipkit/allocator"
)

var (
	// ErrLocked says that another process has opened the file.
	ErrLocked = errors.New("the file is in use by another process")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("the store is closed")
)

// CorruptError says that a file is damaged in a way that no crash causes. Restore it from a
// backup, or remove it and repair the store.
type CorruptError struct {
	// Path is the file.
	Path string
	// Offset is the byte where the damage begins.
	Offset int64
	// Err is the damage.
	Err error
}

// Error names the file, the offset and the damage.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged at byte %d: %v", e.Path, e.Offset, e.Err)
}

// Unwrap returns the damage.
func (e *CorruptError) Unwrap() error { return e.Err }

// Store is an [allocator.Store] in a file. Any number of goroutines may use it.
//
// If a write fails, the store truncates the file to what it had before, so that later calls
// succeed as soon as the disk lets them. As long as it cannot, it is unknown what is on the disk, and
// every call tries that again and fails.
type Store struct {
	path string
	lock *lock
	life context.Context // ends when the store is closed
	end  context.CancelCauseFunc

	mu     sync.Mutex
	memory *allocator.Memory // nil without a file
	log    *log
	closed bool
}

var _ allocator.Store = (*Store)(nil)

// Open locks and reads the file at a path. If the file does not exist, every call fails
// with [allocator.ErrNoMap] until [Store.Create] has made it. Open fails with
// [ErrLocked] or a [*CorruptError].
func Open(path string) (*Store, error) {
	path, err := canonical(path)
	if err != nil {
		return nil, err
	}
	l, err := acquire(path + ".lock")
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, lock: l}
	s.life, s.end = context.WithCancelCause(context.Background())
	if err := s.open(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, l.release())
	}
	return s, nil
}

// canonical returns the absolute name of a file without links, whether it exists or not:
// all processes must lock the same file, also after one has changed its folder.
func canonical(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(folder, filepath.Base(path)), err
}

func (s *Store) open() error {
	log, state, err := openLog(s.path)
	if err != nil {
		return err
	}
	s.log = log
	s.memory = allocator.NewMemory(state, log)
	log.state = s.memory.Load
	return nil
}

// Create makes the file with these claims, all with version 1, if it does not exist:
// with all of them, or not at all. A claim without a key or an owner, and a key that
// is given twice, are [allocator.ErrInvalid].
func (s *Store) Create(ctx context.Context, claims ...allocator.Claim) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.memory != nil:
		return nil
	}
	ops, changes := make([]allocator.Op, len(claims)), make([]allocator.Event, len(claims))
	for i, c := range claims {
		c.Version = 1
		ops[i].Claim, changes[i].Claim = c, c
		if sizeOf(c) > maxFrame {
			return fmt.Errorf("creating a map: %w claim of key %v: it is too long", allocator.ErrInvalid, c.Key)
		}
	}
	if err := allocator.CheckOps(ops); err != nil {
		return fmt.Errorf("creating a map: %w", err)
	}
	err := writeNew(s.path, changes, fullFrame)
	if err == nil {
		err = renameNew(s.path)
	}
	if err != nil {
		return fmt.Errorf("creating a map: %w", err)
	}
	return s.open()
}

// Close waits for a write in flight, ends all watches and releases the lock. Later calls
// fail with [ErrClosed].
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.end(ErrClosed)
	var err error
	if s.log != nil {
		err = s.log.close()
	}
	return errors.Join(err, s.lock.release())
}

// inner returns the store in memory once the file exists.
func (s *Store) inner() (*allocator.Memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, ErrClosed
	case s.memory == nil:
		return nil, fmt.Errorf("%s does not exist: %w", s.path, allocator.ErrNoMap)
	}
	return s.memory, nil
}

// Load implements [allocator.Store].
func (s *Store) Load(ctx context.Context) (allocator.State, error) {
	m, err := s.inner()
	if err != nil {
		return allocator.State{}, err
	}
	return m.Load(ctx)
}

// Get implements [allocator.Store].
func (s *Store) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	m, err := s.inner()
	if err != nil {
		return allocator.State{}, err
	}
	return m.Get(ctx, keys...)
}

// Commit implements [allocator.Store]. When it returns, the changes are on the
// disk.
func (s *Store) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	m, err := s.inner()
	if err != nil {
		return nil, err
	}
	size := int64(0)
	for _, op := range ops {
		size += int64(sizeOf(op.Claim))
	}
	if size > maxFrame {
		return nil, fmt.Errorf("%w commit: it has about %d bytes, more than %d", allocator.ErrInvalid, size, maxFrame)
	}
	return m.Commit(ctx, ops)
}

// Watch implements [allocator.Store]. It ends with [ErrClosed] when the store is
// closed.
func (s *Store) Watch(ctx context.Context, after allocator.Version) iter.Seq2[allocator.Event, error] {
	return func(yield func(allocator.Event, error) bool) {
		m, err := s.inner()
		if err != nil {
			yield(allocator.Event{}, err)
			return
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(s.life, func() { cancel(context.Cause(s.life)) })()
		m.Watch(ctx, after)(yield)
	}
}
