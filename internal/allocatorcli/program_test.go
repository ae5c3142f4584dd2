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
)

func program() Program { return Program{Name: "test", Kinds: []Kind{Memory(), File()}} }

var errDead = errors.New("the process is dead")

// mortal is a store whose process dies at one of its writes.
type mortal struct {
	*filestore.Store
	left int
}

func (m *mortal) die() error {
	if m.left--; m.left < 0 {
		return errDead
	}
	return nil
}

func (m *mortal) Create(ctx context.Context, claims ...allocator.Claim) error {
	if err := m.die(); err != nil {
		return err
	}
	return m.Store.Create(ctx, claims...)
}

func (m *mortal) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if err := m.die(); err != nil {
		return nil, err
	}
	return m.Store.Commit(ctx, ops)
}

// TestImportIsAllOrNothing lets an import die at each of its writes. The store must
// have all keys then, or give out none.
func TestImportIsAllOrNothing(t *testing.T) {
	for left := range 4 {
		for _, hasMap := range []bool{false, true} {
			importErr, state, loadErr := importAndDie(t, left, hasMap)
			isAsBefore := len(state.Claims) == 0 && errors.Is(loadErr, allocator.ErrNoMap) == !hasMap
			if isThere := len(state.Claims) == 3; !isThere && !isAsBefore || isThere != (importErr == nil) {
				t.Errorf("%d writes, a map before: %t: import: error %v; then %d keys, error %v",
					left, hasMap, importErr, len(state.Claims), loadErr)
			}
		}
	}
}

// importAndDie imports three keys by a process that dies after some writes, and gives
// what is left then.
func importAndDie(t *testing.T, left int, hasMap bool) (importErr error, state allocator.State, loadErr error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "ports.json")
	object := []byte(`{"kind":"RangeAllocation","apiVersion":"v1","range":"30000-32767","data":"AQM="}`)
	if err := os.WriteFile(file, object, 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := filestore.Open(filepath.Join(dir, "map"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	if hasMap {
		if err := store.Create(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	a := &app{Streams: Streams{Out: io.Discard}, store: &mortal{store, left}}
	if err := a.setRanges("30000-32767"); err != nil {
		t.Fatal(err)
	}
	importErr = a.importMap(t.Context(), []string{file})
	state, loadErr = store.Load(t.Context())
	return importErr, state, loadErr
}

// contested is a store in which somebody else is faster for some changes.
type contested struct {
	*allocator.Memory
	left int
}

func (c *contested) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if c.left--; c.left >= 0 {
		return nil, &allocator.ConflictError{Key: ops[0].Claim.Key}
	}
	return c.Memory.Commit(ctx, ops)
}

// TestLastTryOfAnImport wants the last try to count as those before it do.
func TestLastTryOfAnImport(t *testing.T) {
	keys := []allocator.Key{allocator.PortKey(30000), allocator.PortKey(30001), allocator.PortKey(30008)}
	for faster := range importTries + 1 {
		a := &app{store: &contested{allocator.NewMemory(allocator.State{}, nil), faster}}
		taken, err := a.take(t.Context(), keys)
		if faster < importTries && (err != nil || taken != len(keys)) || faster == importTries && !errors.Is(err, allocator.ErrConflict) {
			t.Errorf("somebody was faster %d times: %d keys were taken, error %v", faster, taken, err)
		}
	}
}

// TestServeEnds wants a program that waits for a line to end when it is told to.
func TestServeEnds(t *testing.T) {
	in, typist := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs bytes.Buffer
	done := make(chan int)
	go func() { done <- program().Run(ctx, []string{"-range", "10.96.0.0/28"}, Streams{in, &out, &errs}) }()
	if _, err := io.WriteString(typist, "allocate web 10.96.0.1\n\n"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if status := <-done; status != 1 || !bytes.Contains(errs.Bytes(), []byte("interrupted")) {
		t.Errorf("status %d, %q, want 1 and that it was interrupted", status, errs.String())
	}
	if err := typist.Close(); err != nil {
		t.Fatal(err)
	}
}

// late is a store that answers once nobody wants to know any more, and all others have heard
// of that.
type late struct{ *allocator.Memory }

func (l late) Load(ctx context.Context) (allocator.State, error) {
	<-ctx.Done()
	synctest.Wait()
	return l.Memory.Load(context.WithoutCancel(ctx))
}

// TestInterruptedIsNoSuccess ends a program in the middle of its lines, when a command goes
// well. That no more lines come then does not mean that all of them were done.
func TestInterruptedIsNoSuccess(t *testing.T) {
	p := Program{Name: "test", Kinds: []Kind{{
		Name: "late", Open: func(_ context.Context, _ string, ranges []allocator.Config) (Opened, error) {
			return Opened{Store: late{allocator.NewMemory(allocator.State{}, nil)}, Ranges: ranges}, nil
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
				t.Errorf("round %d: status %d, %q, after %q, want 1 and that it was interrupted after one command", round, status, errs.String(), out.String())
			}
		})
	}
}
