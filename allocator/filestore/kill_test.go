package filestore_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// victimVariable in the environment makes the test program run victim, and names its file.
const victimVariable = "FILESTORE_TEST_VICTIM"

const (
	kills      = 15
	minChanges = 7 // of a victim
)

func TestMain(m *testing.M) {
	if path := os.Getenv(victimVariable); path != "" {
		// The victim ends when its test ends and closes this pipe.
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(3)
		}()
		if err := victim(path); err != nil {
			fmt.Println("failed:", err)
		}
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// victim allocates and frees keys until it is killed. It prints each change before its
// commit, and after the commit was acknowledged.
func victim(path string) error {
	s, err := filestore.Open(path)
	if err != nil {
		return err
	}
	if err := s.Create(context.Background()); err != nil {
		return err
	}
	var mu sync.Mutex
	report := func(what string, key int, token uint64) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Println(what, key, token)
	}
	failed := make(chan error)
	for worker := range 8 {
		go func() {
			for i := 0; ; i++ {
				key, token := worker*100+i%100, uint64(time.Now().UnixNano())
				if err := toggle(s, key, token, report); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}

// toggle frees a key that is allocated, and allocates one that is free.
func toggle(s *filestore.Store, key int, token uint64, report func(string, int, uint64)) error {
	state, err := s.Get(context.Background(), storetest.Key(key))
	if err != nil {
		return err
	}
	// With names of this length the log is rewritten about every thousand changes.
	name := allocator.Owner(strings.Repeat("victim", 200))
	op := allocator.Op{Claim: allocator.Claim{Key: storetest.Key(key), Owner: name, Token: token}}
	if len(state.Claims) > 0 {
		op, token = allocator.Op{Claim: state.Claims[0], Delete: true}, 0
	}
	report("try", key, token)
	if _, err := s.Commit(context.Background(), []allocator.Op{op}); err != nil {
		return err
	}
	report("done", key, token)
	return nil
}

// TestKill kills a process that writes, several times. The file must have every change that
// was acknowledged, and none that was not tried.
func TestKill(t *testing.T) {
	t.Parallel()
	rnd := testenv.Random(t)
	path := filepath.Join(t.TempDir(), "map")
	acked := map[string]string{} // token by key; "0" is free
	done, files := 0, map[string]bool{}
	for range kills {
		tried := kill(t, path, time.Duration(20+rnd.IntN(100))*time.Millisecond, func(key, token string) {
			acked[key] = token
			done++
		})
		checkSurvivors(t, path, acked, tried)
		whole, err := os.ReadFile(path)
		testenv.NoError(t, err)
		files[string(whole[:min(37, len(whole))])] = true // Each file has a head of its own.
	}
	if done < 100 {
		t.Errorf("changes: got %d, want at least 100", done)
	}
	t.Logf("%d changes, %d kills, the log was rewritten at least %d times", done, kills, len(files)-1)
}

// kill runs a victim until it has made minChanges, and for the duration after. It returns the
// changes that the victim had tried at the end and that were not acknowledged.
func kill(t *testing.T, path string, after time.Duration, ack func(key, token string)) (tried map[string]string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimVariable+"="+path)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	testenv.NoError(t, err)
	testenv.NoError(t, cmd.Start())
	tried = map[string]string{}
	lines := bufio.NewReader(out)
	left := minChanges // On a busy machine, starting the victim may take longer than after.
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break // a line that was cut short does not count
		}
		words := strings.Fields(line)
		switch {
		case len(words) == 3 && words[0] == "try":
			tried[words[1]] = words[2]
		case len(words) == 3 && words[0] == "done":
			delete(tried, words[1])
			ack(words[1], words[2])
			if left--; left == 0 {
				defer time.AfterFunc(after, func() { _ = cmd.Process.Kill() }).Stop() // It may have ended.
			}
		default:
			t.Errorf("output of the victim: got %q, want try or done", line)
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the victim ended by itself, want it killed")
	}
	return tried
}

func checkSurvivors(t *testing.T, path string, acked, tried map[string]string) {
	t.Helper()
	s := mustOpen(t, path)
	defer mustClose(t, s)
	found := map[allocator.Key]uint64{}
	for _, c := range contents(t, s) {
		found[c.Key] = c.Token
	}
	for i := range 800 {
		key := fmt.Sprint(i)
		got := fmt.Sprint(found[storetest.Key(i)])
		want := acked[key]
		if want == "" {
			want = "0"
		}
		other, isTried := tried[key]
		if got != want && (!isTried || got != other) {
			t.Errorf("token of key %s: got %s, want %s or %q", key, got, want, other)
		}
		acked[key] = got
	}
}
