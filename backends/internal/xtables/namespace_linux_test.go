package xtables

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// namespaceOf returns the network namespace of a thread, by its folder in /proc.
func namespaceOf(t *testing.T, thread string) string {
	t.Helper()
	name, err := os.Readlink(filepath.Join(thread, "ns/net"))
	if err != nil && !os.IsNotExist(err) { // it may have ended
		t.Fatal(err)
	}
	return name
}

// do runs a function in the namespace, on one thread, and no thread stays in the namespace.
func TestNamespaceDo(t *testing.T) {
	var there *namespace
	err := netnstest.NewNS(t).Do(func() (err error) {
		there, err = currentNamespace()
		return err
	})
	testenv.NoError(t, err)
	name := "net:[" + strconv.FormatUint(there.inode, 10) + "]"
	own, err := currentNamespace()
	testenv.NoError(t, err)
	for _, p := range []*namespace{own, there} { // the last one must not hide that a thread stayed in the other one
		where := "net:[" + strconv.FormatUint(p.inode, 10) + "]"
		err := p.do(func() error {
			if got := namespaceOf(t, "/proc/thread-self"); got != where {
				t.Errorf("namespace in do: got %s, want %s", got, where)
			}
			staysOnThread(t)
			return unix.EXDEV
		})
		if err != unix.EXDEV { //nolint:errorlint // do must not wrap the error
			t.Errorf("do: got error %v, want %v itself", err, unix.EXDEV)
		}
	}
	left := func() bool {
		threads, err := filepath.Glob("/proc/self/task/*")
		if err != nil || len(threads) == 0 {
			t.Fatalf("threads: got %d, error %v, want at least one", len(threads), err)
		}
		for _, thread := range threads {
			if namespaceOf(t, thread) == name {
				return false
			}
		}
		return true
	}
	// A thread of the fixture may be about to end.
	for deadline := time.Now().Add(time.Minute); !left(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("threads in the namespace after a minute: got one, want none")
		}
	}
}

// staysOnThread checks that the goroutine stays on its thread while others are ready to run.
func staysOnThread(t *testing.T) {
	t.Helper()
	at := unix.Gettid()
	var others sync.WaitGroup
	defer others.Wait()
	ping, pong := make(chan int), make(chan int)
	defer close(ping)
	for range 4 {
		others.Go(func() {
			for i := range ping {
				pong <- i
			}
		})
	}
	for i := range 2000 {
		ping <- i
		runtime.Gosched()
		<-pong
		if now := unix.Gettid(); now != at {
			t.Errorf("thread: got %d, want %d as before", now, at)
			return
		}
	}
}

// If a namespace cannot be entered, do does not call the function.
func TestNamespaceDoFails(t *testing.T) {
	file, err := os.Open("/proc/self/ns/uts")
	testenv.NoError(t, err)
	defer file.Close() //nolint:errcheck // it is open for reading only
	err = (&namespace{file: file}).do(func() error {
		t.Error("do called the function, want it not to")
		return nil
	})
	if err == nil {
		t.Error("do: got no error, want one")
	}
}
