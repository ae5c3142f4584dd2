package netns_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// id names the namespace that the calling thread is in.
func id() (string, error) { return os.Readlink("/proc/thread-self/ns/net") }

func idWithin(t *testing.T, n *netns.NS) string {
	t.Helper()
	var got string
	err := n.Do(func() (err error) {
		got, err = id()
		return err
	})
	testenv.NoError(t, err)
	return got
}

func outerID(t *testing.T) string {
	t.Helper()
	got, err := id()
	testenv.NoError(t, err)
	return got
}

// A function that has left the namespace is in the namespace of the process, and leaving twice is leaving once.
func TestDoUntil(t *testing.T) {
	t.Parallel()
	outside, n := outerID(t), newNS(t)
	var inside, left string
	err := n.DoUntil(func(leave func()) (err error) {
		inside, _ = id()
		leave()
		leave()
		left, err = id()
		return err
	})
	if err != nil || inside == "" || inside == outside || left != outside {
		t.Errorf("got namespace %s, then %s, and error %v, want another one than %s first, and that then", inside, left, err, outside)
	}
}

func TestNewIsIsolated(t *testing.T) {
	t.Parallel()
	outside := outerID(t)
	a, b := newNS(t), newNS(t)
	ids := map[string]bool{outside: true, idWithin(t, a): true, idWithin(t, b): true}
	if len(ids) != 3 {
		t.Errorf("namespaces outside, a and b: got %v, want three different ones", ids)
	}
	if again := idWithin(t, a); !ids[again] || again == outside {
		t.Errorf("namespace of a second Do: got %s, want the same as of the first", again)
	}
	if now := outerID(t); now != outside {
		t.Errorf("namespace of the caller afterwards: got %s, want %s", now, outside)
	}
}

func TestCurrent(t *testing.T) {
	t.Parallel()
	a := newNS(t)
	want := idWithin(t, a)
	err := a.Do(func() error {
		c, err := netns.Current()
		if err != nil {
			return err
		}
		if got := idWithin(t, c); got != want {
			t.Errorf("Current within Do: got %s, want %s", got, want)
		}
		return c.Close()
	})
	testenv.NoError(t, err)
}

// Do restores the namespace of its thread: however often and in whatever order
// goroutines enter namespaces, other goroutines never run in them.
func TestDoRestoresNamespaces(t *testing.T) {
	t.Parallel()
	outside := outerID(t)
	a, b := newNS(t), newNS(t)
	wantA, wantB := idWithin(t, a), idWithin(t, b)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			got, err := nested(a, b)
			if diff := cmp.Diff([]string{wantB, wantA}, got); err != nil || diff != "" {
				t.Errorf("namespaces inside and after a nested Do (error %v, -want +got):\n%s", err, diff)
			}
		})
	}
	for range 200 {
		wg.Go(func() {
			if got, err := id(); err != nil || got != outside {
				t.Errorf("namespace of another goroutine: got %s, error %v, want %s", got, err, outside)
			}
		})
	}
	wg.Wait()
}

// nested enters b from within a, and returns the namespaces inside and after the inner Do.
func nested(a, b *netns.NS) ([]string, error) {
	seen := make([]string, 2)
	err := a.Do(func() error {
		err := b.Do(func() (err error) {
			seen[0], err = id()
			return err
		})
		if err != nil {
			return err
		}
		seen[1], err = id()
		return err
	})
	return seen, err
}

func TestDoErrors(t *testing.T) {
	t.Parallel()
	n := newNS(t)
	want := errors.New("from within")
	if err := n.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do: got error %v, want the error of the function", err)
	}
	if err := n.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("Do of a function that calls runtime.Goexit: got no error, want one")
	}
	closed, err := netns.New()
	testenv.NoError(t, err)
	testenv.NoError(t, closed.Close())
	if err := closed.Do(func() error { t.Error("Do in a closed namespace called its function"); return nil }); err == nil {
		t.Error("Do in a closed namespace: got no error, want one")
	}
}

func TestNewSettings(t *testing.T) {
	t.Parallel()
	n := newNS(t)
	peer := newNS(t)
	link(t, n, "later", peer, "peer")
	type want struct{ pattern, value string }
	for _, w := range []want{
		{"net/ipv4/conf/*/rp_filter", "0"},
		{"net/ipv4/conf/*/send_redirects", "0"},
		{"net/ipv6/conf/*/accept_redirects", "0"},
		{"net/ipv6/conf/*/accept_dad", "0"},
		{"net/ipv6/conf/*/disable_ipv6", "0"},
		{"net/ipv4/icmp_ratelimit", "0"},
		{"net/ipv4/icmp_ratemask", "0"},
		{"net/ipv6/icmp/ratelimit", "0"},
		{"net/ipv4/ip_forward", "0"},
	} {
		files := sysctls(t, n, w.pattern)
		if len(files) == 0 {
			t.Errorf("sysctls named %s: got none, want at least one", w.pattern)
		}
		for name, got := range files {
			testenv.Same(t, w.value, got, "%s", name)
		}
	}
}

func TestSysctl(t *testing.T) {
	t.Parallel()
	n := newNS(t)
	testenv.NoError(t, n.Forward())
	testenv.NoError(t, n.Sysctl("net/ipv4/ip_default_ttl", "17"))
	got := map[string]string{}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/ip_default_ttl"} {
		got[filepath.Base(name)] = sysctls(t, n, name)["/proc/sys/"+name]
	}
	want := map[string]string{"ip_forward": "1", "forwarding": "1", "ip_default_ttl": "17"}
	testenv.Same(t, want, got, "sysctls")
	if err := n.Sysctl("net/ipv4/no_such_thing", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown sysctl: got error %v, want fs.ErrNotExist", err)
	}
}

func sysctls(t *testing.T, n *netns.NS, pattern string) map[string]string {
	t.Helper()
	values := map[string]string{}
	err := n.Do(func() error {
		files, err := filepath.Glob("/proc/sys/" + pattern)
		for _, f := range files {
			value, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			values[f] = strings.TrimSpace(string(value))
		}
		return err
	})
	testenv.NoError(t, err)
	return values
}

// Close leaves no file descriptor open.
func TestCloseLeavesNoDescriptors(t *testing.T) {
	newNS(t) // From now on, the descriptors that the runtime opens once are open.
	before := testenv.OpenFiles(t)
	for range 20 {
		n, err := netns.New()
		testenv.NoError(t, err)
		testenv.NoError(t, n.Close())
	}
	if after := testenv.OpenFiles(t); after != before {
		t.Errorf("open descriptors after 20 namespaces: got %d, want %d as before", after, before)
	}
}
