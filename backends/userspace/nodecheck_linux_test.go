package userspace_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// Only the capture that marks packets reports the setting with which the kernel drops marked
// packets.
func TestCheckNode(t *testing.T) {
	t.Parallel()
	const setting = "net.ipv4.conf.all.src_valid_mark"
	for _, c := range []struct {
		capture userspace.Capture
		value   string
		want    []string
	}{
		{userspace.TPROXY, "0", nil},
		{userspace.TPROXY, "1", []string{setting}},
		{userspace.Redirect, "1", nil},
	} {
		ns := netnstest.NewNS(t)
		testenv.NoError(t, ns.Sysctl("net/ipv4/conf/all/src_valid_mark", c.value))
		b := netnstest.Open(t, ns, func() (*userspace.Backend, error) { return userspace.New(userspace.Options{Capture: c.capture}) })
		var got []string
		err := ns.Do(func() error {
			for _, p := range b.CheckNode(snapshot(one)) {
				got = append(got, p.Field)
			}
			return nil
		})
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%v with %s %s (-want +got), error %v:\n%s", c.capture, setting, c.value, err, diff)
		}
	}
}

// A firewall that drops new connections to the node drops what the backend captures. CheckNode names its chain,
// until it has the rule that CheckNode names, with which connections work.
func TestCheckNodeNamesFirewalls(t *testing.T) {
	const chain = "chain in of table inet fw"
	for _, capture := range []userspace.Capture{userspace.TPROXY, userspace.Redirect} {
		t.Run(capture.String(), func(t *testing.T) {
			n := newNetwork(t)
			n.serve(t, podServer)
			b := n.start(t, userspace.Options{Capture: capture})
			apply(t, b, snapshot(one))
			nft := func(commands string) {
				t.Helper()
				if _, err := netnstest.Run(t, n.node, commands, netnstest.NFT(t), "-f", "-"); err != nil {
					t.Fatal(err)
				}
			}
			nft("table inet fw { chain in { type filter hook input priority 0; policy drop; ct state established,related accept; tcp dport 22 accept; }; }")
			check := func() (found []*proxy.Problem) {
				testenv.NoError(t, n.node.Do(func() error { found = b.CheckNode(snapshot(one)); return nil }))
				return found
			}
			_, _, _, err := n.askFor(t, one, 300*time.Millisecond)
			if failed, is := errors.AsType[net.Error](err); !is || !failed.Timeout() {
				t.Errorf("connection without the rule: got error %v, want a timeout", err)
			}
			found := check()
			if len(found) != 1 || found[0].Field != chain {
				t.Fatalf("problems: got %v, want one of %s", found, chain)
			}
			_, rule, _ := strings.Cut(found[0].Error(), "add the rule: ")
			nft("add rule inet fw in " + rule)
			n.wantAnswer(t, one)
			if found = check(); len(found) > 0 {
				t.Errorf("problems with the rule %q: got %v, want none", rule, found)
			}
		})
	}
}
