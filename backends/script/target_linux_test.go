package script_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/script"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

type key string

func (k key) Rank() int  { return len(k) }
func (key) Shared() bool { return false }

type op = backends.Op[key, string]

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// one returns the ops of a commit.
func one() []op { return []op{{Key: "one"}} }

func target(shell string) *script.Target[key] {
	return &script.Target[key]{
		Command: []string{"sh", "-c", shell}, Begin: "begin\n", Missing: "not there",
		Remove: func(k key) string { return "remove " + string(k) + "\n" },
	}
}

// The program gets one script with all operations, in their order.
func TestCommitWritesOneScript(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "script")
	out := target("cat >>"+file).Commit(t.Context(), []op{
		{Kind: backends.Add, Key: "one", Value: "add one\n"},
		{Kind: backends.Replace, Key: "two", Value: "add two\n"},
		{Kind: backends.Remove, Key: "three", Value: "add three\n"},
	})
	testenv.NoError(t, out.Err())
	got, err := os.ReadFile(file)
	testenv.NoError(t, err)
	testenv.Same(t, "begin\nadd one\nadd two\nremove three\n", string(got), "script")
}

// Scripts and outputs of any length work, with a program that reads its input and with one
// that does not, and so does the next script. Errors have a limited length.
func TestSizes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "script")
	for _, size := range []int{0, 1, 4095, 4096, 64<<10 - 7, 64 << 10, 64<<10 + 1, 1 << 20, 1<<20 + 1, 5 << 20, 1, 0} {
		value := strings.Repeat("x", size)
		for _, shell := range []string{"exit 1", "cat >&2; exit 1", "cat; cat /dev/zero | head -c 3000000; exit 1", "head -c 1 >/dev/null; exit 1"} {
			err := target(shell).Commit(t.Context(), []op{{Key: "one", Value: value}}).Err()
			wantError(t, fmt.Sprintf("%s, %d bytes", shell, size), err, "exit status 1", nil)
			if n := len(err.Error()); n > 20<<10 {
				t.Errorf("%s, %d bytes: got an error of %d bytes, want at most 20 KiB", shell, size, n)
			}
		}
		if err := target("cat >"+file).Commit(t.Context(), []op{{Key: "one", Value: value}}).Err(); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		got, err := os.ReadFile(file)
		if err != nil || string(got) != "begin\n"+value {
			t.Errorf("%d bytes: the program got %d bytes, error %v", size, len(got), err)
		}
	}
}

// The exit of the program decides which error Commit returns.
func TestCommitTellsWhatHappened(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, shell, says string
		wants             []error
	}{
		{"refused", "cat >/dev/null; echo no such type; exit 1", "no such type", nil},
		{"another status", "exit 3", "status 3", []error{proxy.ErrDataplaneLost}},
		{"killed", "kill -KILL $$", "killed", []error{proxy.ErrDataplaneLost}},
		{"something is missing", "cat >/dev/null; echo it is not there >&2; exit 1", "it is not there", []error{backends.ErrConflict}},
	} {
		got := target(c.shell).Commit(t.Context(), []op{{Key: "one", Value: "add one\n"}}).Err()
		wantError(t, c.name, got, c.says, c.wants)
	}
	none := &script.Target[key]{Command: []string{"/nowhere/to/be/found"}}
	wantError(t, "no program", none.Commit(t.Context(), one()).Err(), "/nowhere", []error{proxy.ErrUnsupported, backends.ErrUnavailable})
	none.Command = nil
	wantError(t, "no command", none.Commit(t.Context(), one()).Err(), "Command is empty", []error{proxy.ErrUnsupported})
	ended, end := context.WithCancel(t.Context())
	end()
	wantError(t, "ended before", target("true").Commit(ended, one()).Err(), "", []error{context.Canceled})
}

// wantError checks that the text of an error contains says, and that it wraps exactly wants
// of the errors that callers check.
func wantError(t *testing.T, name string, got error, says string, wants []error) {
	t.Helper()
	known := []error{proxy.ErrDataplaneLost, proxy.ErrUnsupported, backends.ErrConflict, backends.ErrUnavailable, context.Canceled}
	if got == nil || !strings.Contains(got.Error(), says) {
		t.Errorf("%s: got error %v, want one with %q", name, got, says)
		return
	}
	for _, e := range known {
		want := false
		for _, w := range wants {
			want = want || w == e //nolint:errorlint // this error itself
		}
		if errors.Is(got, e) != want {
			t.Errorf("%s: got error %v, wraps %q: %t, want %t", name, got, e, !want, want)
		}
	}
}

// A program that is killed because the context has ended may have done everything, and its
// child processes do not delay Apply.
func TestCommitIsCancelled(t *testing.T) {
	t.Parallel()
	begun := filepath.Join(t.TempDir(), "begun")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	result := make(chan error, 1)
	go func() { result <- target("sleep 4 & echo >"+begun+"; exec sleep 60").Commit(ctx, one()).Err() }()
	deadline := time.Now().Add(time.Minute)
	for _, err := os.Stat(begun); err != nil; _, err = os.Stat(begun) {
		if time.Now().After(deadline) {
			t.Fatal("the program has not started within a minute")
		}
		time.Sleep(time.Millisecond)
	}
	end()
	select {
	case err := <-result:
		wantError(t, "cancelled", err, "", []error{context.Canceled, proxy.ErrDataplaneLost})
	case <-time.After(30 * time.Second): // by itself, the program ends after a minute
		t.Error("Commit still runs after its context has ended")
	}
}

// The program refuses one object. Apply names the service port that needs it, and programs
// all others.
func Example() {
	kernel := &script.Target[key]{
		Command: []string{"sh", "-c", "! grep bad"},
		Remove:  func(k key) string { return "delete " + string(k) + "\n" },
		Anew:    []key{"table"},
	}
	type object = backends.Object[key, string]
	render := func(_ backends.Env, port *proxy.ServicePort, out []object) []object {
		if port == nil {
			return append(out, object{Key: "table", Value: "delete table\nadd table\n"})
		}
		k := key("port " + port.Name.Name)
		return append(out, object{Key: k, Value: "add " + string(k) + "\n"})
	}
	portNamed := func(name string) *proxy.ServicePort {
		return &proxy.ServicePort{Name: proxy.ServicePortName{
			NamespacedName: types.NamespacedName{Namespace: "shop", Name: name}, Protocol: v1.ProtocolTCP, Family: v1.IPv4Protocol,
		}}
	}
	b := backends.New(render, backends.Target[key, string](kernel))
	err := b.Apply(context.Background(), proxy.Snapshot{}, proxy.NewSnapshot(nil, portNamed("good"), portNamed("bad")))
	failed, _ := errors.AsType[proxy.PortErrors](err)
	for name, err := range failed {
		fmt.Printf("%s: %v", name.Name, err)
	}
	// Output: bad: script: sh: exit status 1: add port bad
}
