package allocatorcli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/internal/testenv"
)

func program() Program { return Program{Name: "test", Kinds: []Kind{Memory(), File()}} }

var errCrashed = errors.New("the process has crashed")

// crashing is a store whose process crashes at one of its writes.
type crashing struct {
	*filestore.Store
	left int
}

func (m *crashing) crash() error {
	if m.left--; m.left < 0 {
		return errCrashed
	}
	return nil
}

func (m *crashing) Create(ctx context.Context, claims ...allocator.Claim) error {
	if err := m.crash(); err != nil {
		return err
	}
	return m.Store.Create(ctx, claims...)
}

func (m *crashing) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if err := m.crash(); err != nil {
		return nil, err
	}
	return m.Store.Commit(ctx, ops)
}

// TestImportIsAllOrNothing crashes an import at each of its writes. Afterwards the store must
// have all keys, or none.
func TestImportIsAllOrNothing(t *testing.T) {
	for left := range 4 {
		for _, hasMap := range []bool{false, true} {
			importErr, state, loadErr := importAndCrash(t, left, hasMap)
			isAsBefore := len(state.Claims) == 0 && errors.Is(loadErr, allocator.ErrNoMap) == !hasMap
			if hasAll := len(state.Claims) == 3; !hasAll && !isAsBefore || hasAll != (importErr == nil) {
				t.Errorf("%d writes, with a map: %t: import: error %v; then: got %d keys, error %v, want all or none",
					left, hasMap, importErr, len(state.Claims), loadErr)
			}
		}
	}
}

// importAndCrash imports three keys in a process that crashes after some writes, and gives
// the state of the store afterwards.
func importAndCrash(t *testing.T, left int, hasMap bool) (importErr error, state allocator.State, loadErr error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "ports.json")
	object := []byte(`{"kind":"RangeAllocation","apiVersion":"v1","range":"30000-32767","data":"AQM="}`)
	testenv.NoError(t, os.WriteFile(file, object, 0o600))
	store, err := filestore.Open(filepath.Join(dir, "map"))
	testenv.NoError(t, err)
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	if hasMap {
		testenv.NoError(t, store.Create(t.Context()))
	}
	a := &app{Streams: Streams{Out: io.Discard}, store: &crashing{store, left}}
	testenv.NoError(t, a.setRanges("30000-32767"))
	importErr = a.importMap(t.Context(), []string{file})
	state, loadErr = store.Load(t.Context())
	return importErr, state, loadErr
}

// conflicting is a store whose first commits are conflicts.
type conflicting struct {
	*allocator.Memory
	left int
}

func (c *conflicting) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if c.left--; c.left >= 0 {
		return nil, &allocator.ConflictError{Key: ops[0].Claim.Key}
	}
	return c.Memory.Commit(ctx, ops)
}

// TestLastTryOfAnImport checks that an import succeeds at its last try, and then gives up.
func TestLastTryOfAnImport(t *testing.T) {
	keys := []allocator.Key{allocator.PortKey(30000), allocator.PortKey(30001), allocator.PortKey(30008)}
	for conflicts := range importTries + 1 {
		a := &app{store: &conflicting{allocator.NewMemory(allocator.State{}, nil), conflicts}}
		taken, err := a.take(t.Context(), keys)
		if conflicts < importTries && (err != nil || taken != len(keys)) || conflicts == importTries && !errors.Is(err, allocator.ErrConflict) {
			t.Errorf("after %d conflicts: got %d keys, error %v", conflicts, taken, err)
		}
	}
}

// TestServeEnds checks that a program that waits for a line ends with its context.
func TestServeEnds(t *testing.T) {
	in, writer := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	done := make(chan int)
	go func() { done <- program().Run(ctx, []string{"-range", "10.96.0.0/28"}, Streams{in, &out, &errs}) }()
	if _, err := io.WriteString(writer, "allocate web 10.96.0.1\n\n"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if status := <-done; status != 1 || !bytes.Contains(errs.Bytes(), []byte("interrupted")) {
		t.Errorf("got status %d, %q, want 1 and interrupted", status, errs.String())
	}
	testenv.NoError(t, writer.Close())
}

// slow is a store whose Load returns after its context has ended and all other goroutines have
// noticed that.
type slow struct{ *allocator.Memory }

func (l slow) Load(ctx context.Context) (allocator.State, error) {
	<-ctx.Done()
	synctest.Wait()
	return l.Memory.Load(context.WithoutCancel(ctx))
}

// TestInterruptedIsAFailure interrupts a program between two lines, after a command that
// succeeds. The exit status must not be 0, as not all lines were run.
func TestInterruptedIsAFailure(t *testing.T) {
	p := Program{Name: "test", Kinds: []Kind{{
		Name: "late", Open: func(_ context.Context, _ string, ranges []allocator.Config) (Opened, error) {
			return Opened{Store: slow{allocator.NewMemory(allocator.State{}, nil)}, Ranges: ranges}, nil
		},
	}}}
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var out, errs bytes.Buffer
			done := make(chan int)
			go func() {
				done <- p.Run(ctx, []string{"-range", "1-9"}, Streams{strings.NewReader("show\nshow\n"), &out, &errs})
			}()
			synctest.Wait()
			cancel()
			if status := <-done; status != 1 || errs.String() != "test: interrupted\n" || strings.Count(out.String(), "1-9:") != 1 {
				t.Errorf("round %d: got status %d, %q, after %q, want 1 and interrupted after one command", round, status, errs.String(), out.String())
			}
		})
	}
}
