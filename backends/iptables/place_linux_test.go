package iptables

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
)

// namespaceOf gives the network namespace of a thread, by its folder in /proc.
func namespaceOf(t *testing.T, thread string) string {
	t.Helper()
	name, err := os.Readlink(filepath.Join(thread, "ns/net"))
	if err != nil && !os.IsNotExist(err) { // it may have ended
		t.Fatal(err)
	}
	return name
}

// What is done in a place is done there, on one thread, and no thread stays.
func TestPlace(t *testing.T) {
	var there *place
	err := netnstest.NewNS(t).Do(func() (err error) {
		there, err = here()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	name := "net:[" + strconv.FormatUint(there.inode, 10) + "]"
	own, err := here()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*place{own, there} { // the last one must not hide where a thread was left before
		where := "net:[" + strconv.FormatUint(p.inode, 10) + "]"
		err := p.do(func() error {
			if got := namespaceOf(t, "/proc/thread-self"); got != where {
				t.Errorf("in a place: got namespace %s, want %s", got, where)
			}
			staysOnThread(t)
			return unix.EXDEV
		})
		if err != unix.EXDEV { //nolint:errorlint // nothing is to be added
			t.Errorf("got error %v, want %v as it was", err, unix.EXDEV)
		}
	}
	left := func() bool {
		threads, err := filepath.Glob("/proc/self/task/*")
		if err != nil || len(threads) == 0 {
			t.Fatalf("got %d threads and error %v", len(threads), err)
		}
		for _, thread := range threads {
			if namespaceOf(t, thread) == name {
				return false
			}
		}
		return true
	}
	// A thread of the fixture's may be on its way out.
	for deadline := time.Now().Add(time.Minute); !left(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("a thread is still in the place")
		}
	}
}

// staysOnThread checks that the goroutine is not moved while others want to run.
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
			t.Errorf("thread %d became thread %d", at, now)
			return
		}
	}
}

// Where a place cannot be entered, nothing is done.
func TestPlaceThatIsNone(t *testing.T) {
	file, err := os.Open("/proc/self/ns/uts")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it was open for reading only
	err = (&place{file: file}).do(func() error {
		t.Error("something was done")
		return nil
	})
	if err == nil {
		t.Error("got no error")
	}
}
