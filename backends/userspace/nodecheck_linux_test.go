package userspace_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// check returns the problems of the node.
func (n network) check(t *testing.T, b *userspace.Backend) (found []*proxy.Problem) {
	t.Helper()
	testenv.NoError(t, n.node().Do(func() error { found = b.Abilities().CheckNode(snapshot(one)); return nil }))
	return found
}

// Only the capture that marks packets reports the setting with which the kernel drops marked
// packets.
func TestCheckNode(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		b := n.start(t, userspace.Options{Capture: c})
		for _, value := range []string{"0", "1"} {
			testenv.NoError(t, n.node().Sysctl("net/ipv4/conf/all/src_valid_mark", value))
			var want, got []string
			if c == userspace.TPROXY && value == "1" {
				want = []string{"net.ipv4.conf.all.src_valid_mark"}
			}
			for _, p := range n.check(t, b) {
				got = append(got, p.Field)
			}
			if !slices.Equal(got, want) {
				t.Errorf("with src_valid_mark %s: got problems of %q, want %q", value, got, want)
			}
		}
	})
}

// A firewall that drops new connections to the node drops what the backend captures. CheckNode names its chain,
// until it has the rule that CheckNode names, with which connections work.
func TestCheckNodeNamesFirewalls(t *testing.T) {
	const chain = "chain in of table inet fw"
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, snapshot(one))
		n.nft(t, "table inet fw { chain in { type filter hook input priority 0; policy drop; ct state established,related accept; tcp dport 22 accept; }; }")
		_, _, err := n.askFor(t, one, 300*time.Millisecond)
		if failed, is := errors.AsType[net.Error](err); !is || !failed.Timeout() {
			t.Errorf("connection without the rule: got error %v, want a timeout", err)
		}
		found := n.check(t, b)
		if len(found) != 1 || found[0].Field != chain {
			t.Fatalf("problems: got %v, want one of %s", found, chain)
		}
		_, rule, _ := strings.Cut(found[0].Error(), "add the rule: ")
		n.nft(t, "add rule inet fw in "+rule)
		n.wantAnswer(t, one)
		if found = n.check(t, b); len(found) > 0 {
			t.Errorf("problems with the rule %q: got %v, want none", rule, found)
		}
	})
}

// withoutRaw tells a process of the test program that it has no CAP_NET_RAW; withoutIPv6, that
// it must make all its attempts to open an IPv6 socket fail.
const (
	withoutRaw  = "VIPKIT_TEST_WITHOUT_RAW"
	withoutIPv6 = "VIPKIT_TEST_WITHOUT_IPV6"
)

// If a privilege or IPv6 is missing, the error is proxy.ErrUnsupported and names it, so that
// callers do not retry for ever.
func TestMissingPrivileges(t *testing.T) {
	netnstest.NeedNamespaces(t)
	wanted := map[string]string{withoutRaw: "CAP_NET_RAW", withoutIPv6: "Options.Families"}
	for variable, want := range wanted {
		if os.Getenv(variable) != "" {
			checkUnsupported(t, variable, want)
			return
		}
	}
	for variable := range wanted {
		t.Run(variable, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMissingPrivileges$")
			cmd.Env = append(os.Environ(), variable+"=1")
			done := make(chan error)
			go func() {
				runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
				if variable == withoutRaw {
					if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_RAW, 0, 0, 0); err != nil {
						done <- err
						return
					}
				}
				out, err := cmd.CombinedOutput()
				if err != nil {
					err = errors.Join(err, errors.New(string(out)))
				}
				done <- err
			}()
			testenv.NoError(t, <-done)
		})
	}
}

func checkUnsupported(t *testing.T, variable, want string) {
	t.Helper()
	n := newNetwork(t)
	if variable == withoutIPv6 {
		netnstest.DenyIPv6(t)
	}
	b := n.start(t, userspace.Options{})
	err := b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one))
	if !errors.Is(err, proxy.ErrUnsupported) || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want one that is %v and names %s", err, proxy.ErrUnsupported, want)
	}
}

// A node that cannot use IPv6 has the Services of IPv4, whenever that setting changes; and those of
// IPv6 when it can.
func TestFamilySwitchedOff(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		t.Parallel()
		n := newNetwork(t)
		s := bothProtocols()
		b := n.start(t, userspace.Options{Capture: c})
		resync := func(problems int, all ...string) {
			t.Helper()
			testenv.NoError(t, b.Apply(t.Context(), proxy.Snapshot{}, s))
			if found := b.Abilities().CheckNode(s); len(found) != problems {
				t.Errorf("problems of the node: got %v, want %d", found, problems)
			}
			if b.Abilities().Drifted(t.Context()) {
				t.Error("Drifted after Apply: got true, want false")
			}
			for _, to := range all {
				_, conn := n.wantAnswer(t, to)
				_ = conn.Close()
			}
		}
		set := func(disabled string) {
			t.Helper()
			testenv.NoError(t, n.node().Sysctl("net/ipv6/conf/lo/disable_ipv6", disabled))
			if !b.Abilities().Drifted(t.Context()) {
				t.Errorf("Drifted with disable_ipv6 %s: got false, want true", disabled)
			}
		}
		set("1")
		resync(1, one)
		for range 2 {
			set("0")
			resync(0, service6, one)
			set("1")
			resync(1, one)
		}
		set("0")
		lo, err := n.node().Netlink().LinkByName("lo")
		testenv.NoError(t, err)
		testenv.NoError(t, n.node().Netlink().AddrDel(lo, &netlink.Addr{IPNet: prefix("::1/128")}))
		resync(0, one, service6)
	})
}
