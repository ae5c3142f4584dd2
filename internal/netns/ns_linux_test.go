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

	"github.com/vipkit/vipkit/internal/netns"
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
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func outerID(t *testing.T) string {
	t.Helper()
	got, err := id()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestNewIsApart(t *testing.T) {
	outside := outerID(t)
	a, b := newNS(t), newNS(t)
	ids := map[string]bool{outside: true, idWithin(t, a): true, idWithin(t, b): true}
	if len(ids) != 3 {
		t.Errorf("the namespaces outside, a and b are %v, want three different ones", ids)
	}
	if again := idWithin(t, a); !ids[again] || again == outside {
		t.Errorf("a second Do ran in %s, want the namespace of the first", again)
	}
	if now := outerID(t); now != outside {
		t.Errorf("the caller is in %s afterwards, want %s", now, outside)
	}
}

func TestCurrent(t *testing.T) {
	a := newNS(t)
	want := idWithin(t, a)
	err := a.Do(func() error {
		c, err := netns.Current()
		if err != nil {
			return err
		}
		if got := idWithin(t, c); got != want {
			t.Errorf("Current within Do is %s, want %s", got, want)
		}
		return c.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Threads go back to where they came from: however often and in whatever order
// namespaces are entered, other goroutines never see them.
func TestDoLeavesNoThreadBehind(t *testing.T) {
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
				t.Errorf("a bystander is in %s (error %v), want %s", got, err, outside)
			}
		})
	}
	wg.Wait()
}

// nested enters b from within a, and says where it was then and afterwards.
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
	n := newNS(t)
	want := errors.New("from within")
	if err := n.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("Do gave error %v, want what the function returned", err)
	}
	if err := n.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("Do gave no error although the function ended its goroutine")
	}
	gone, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gone.Do(func() error { t.Error("ran in a closed namespace"); return nil }); err == nil {
		t.Error("Do in a closed namespace gave no error")
	}
}

func TestNewIsCalm(t *testing.T) {
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
			t.Errorf("no sysctl is called %s", w.pattern)
		}
		for name, got := range files {
			if got != w.value {
				t.Errorf("%s is %q, want %q", name, got, w.value)
			}
		}
	}
}

func TestSysctl(t *testing.T) {
	n := newNS(t)
	if err := n.Forward(); err != nil {
		t.Fatal(err)
	}
	if err := n.Sysctl("net/ipv4/ip_default_ttl", "17"); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/ip_default_ttl"} {
		got[filepath.Base(name)] = sysctls(t, n, name)["/proc/sys/"+name]
	}
	want := map[string]string{"ip_forward": "1", "forwarding": "1", "ip_default_ttl": "17"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sysctls (-want +got):\n%s", diff)
	}
	if err := n.Sysctl("net/ipv4/no_such_thing", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unknown sysctl gave %v, want an error that is fs.ErrNotExist", err)
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
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// Nothing stays: neither files nor threads nor descriptors.
func TestNothingStays(t *testing.T) {
	newNS(t) // Descriptors that the runtime opens once are open now.
	before := openFiles(t)
	for range 20 {
		n, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if after := openFiles(t); after != before {
		t.Errorf("%d descriptors are open after 20 namespaces, want %d as before", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}
