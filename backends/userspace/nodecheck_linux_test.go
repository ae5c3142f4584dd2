package userspace_test

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// check returns the problems of the node.
func (n network) check(t *testing.T, b *userspace.Backend) (found []*proxy.Problem) {
	t.Helper()
	testenv.NoError(t, n.node().Do(func() error { found = b.CheckNode(snapshot(one)); return nil }))
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
