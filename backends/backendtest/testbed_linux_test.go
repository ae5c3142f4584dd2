package backendtest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// setUp returns a testbed that ends with the test.
func setUp(t testing.TB) *testbed {
	t.Helper()
	return setUpIn(t, world{})
}

// expectation is a probe with its expected outcomes.
type expectation struct {
	probe
	want []string
}

// check makes all probes and compares their outcomes.
func check(t *testing.T, b *testbed, all []expectation) {
	t.Helper()
	var probes []probe
	for _, e := range all {
		if slices.Contains(e.want, "silence") {
			e.patience = shortPatience
		}
		probes = append(probes, e.probe)
	}
	replies, err := b.probeAll(t.Context(), probes)
	testenv.NoError(t, err)
	for i, e := range all {
		what := fmt.Sprintf("%s to %v/%s", e.from, e.to, e.protocol)
		testenv.Same(t, e.want, summary(replies[i]), "%s", what)
		if want := max(e.tries, 1); len(replies[i]) != want {
			t.Errorf("%s: got %d replies, want %d", what, len(replies[i]), want)
		}
	}
}

func sees(server string, client netip.Addr) []string {
	return []string{fmt.Sprintf("%s sees %v", server, client)}
}

// Every host reaches every server at its address, and the server sees the host's own
// address, in all worlds.
func TestEveryPlaceReachesEveryServer(t *testing.T) {
	t.Parallel()
	for _, w := range append([]world{{name: "routed"}}, worlds()...) {
		t.Run(string(w.name), func(t *testing.T) {
			b := setUpIn(t, w)
			check(t, b, allPairs(b))
		})
	}
}

func allPairs(b *testbed) []expectation {
	var all []expectation
	for _, from := range cluster.Hosts() {
		for _, s := range cluster.Servers() {
			for _, to := range b.host(s.At).Addrs {
				to, family := netip.AddrPortFrom(to, s.Ports[len(s.Ports)-1]), ipaddr.FamilyOf(to)
				want := sees(s.Name, b.host(from.Name).Addr(family))
				switch {
				case from.Name == cluster.Node && s.At != cluster.Node:
					want = sees(s.Name, b.nodeTowards(to.Addr()))
				case from.Name == cluster.RemoteNode && b.world.tunnelMTU > 0:
					continue // The other node has several addresses, too.
				case b.isBlocked(from.Name, s.At, family):
					want = []string{"silence"}
				}
				for _, protocol := range transports() {
					all = append(all, expectation{probe{from: from.Name, protocol: protocol, to: to}, want})
				}
			}
		}
		for _, to := range cluster.Hosts() {
			for _, a := range b.host(to.Name).Addrs {
				p := probe{from: from.Name, protocol: lab.ICMP, to: netip.AddrPortFrom(a, 0)}
				want := []string{"answered"}
				if b.isBlocked(from.Name, to.Name, ipaddr.FamilyOf(a)) {
					want = []string{"silence"}
				}
				all = append(all, expectation{p, want})
			}
		}
	}
	return all
}

// isBlocked reports whether the node does not forward packets from one host to another.
func (b *testbed) isBlocked(from, to cluster.Name, family v1.IPFamily) bool {
	isElsewhere := func(p cluster.Name) bool {
		return p == cluster.RemoteNode || b.host(p).Uplink == cluster.RemoteNode
	}
	isBridged := b.world.bridge != nil && cluster.IsPod(from) && cluster.IsPod(to)
	if from == to || from == cluster.Node || to == cluster.Node || isBridged || isElsewhere(from) && isElsewhere(to) {
		return false
	}
	if b.world.rules != nil && cluster.IsPod(from) && (to == cluster.Outside || to == cluster.Stranger) {
		return true // The pods' own table has no such route.
	}
	return !b.world.allows(b.host(from).Addr(family), b.host(to).Addr(family))
}

func TestEntry(t *testing.T) {
	b := setUp(t)
	got := map[cluster.Name]string{}
	for _, s := range cluster.Hosts() {
		got[s.Name] = b.entry(s.Name)
	}
	want := map[cluster.Name]string{
		cluster.Node: "", cluster.Gateway: "eth0", cluster.RemoteNode: "eth1", cluster.Outside: "eth2", cluster.Stranger: "eth3",
		cluster.Local: "cali-local", cluster.Client: "cali-client", cluster.Local2: "cali-local2",
		cluster.Remote: "eth1", cluster.Remote2: "eth1",
	}
	testenv.Same(t, want, got, "interfaces that receive packets")
}

// The testbed needs no root: this runs a test of it as an unprivileged user.
func TestUnprivileged(t *testing.T) {
	cmd := netnstest.Unprivileged(t, "-test.v", "-test.run=^TestEveryPlaceReachesEveryServer$/^(routed|bridge-nf-0)$")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestEveryPlaceReachesEveryServer") {
		t.Errorf("test as unprivileged user: got error %v and output\n%s", err, out)
	}
}

func TestCheckReadable(t *testing.T) {
	b := setUpVerdicts(t)
	n := findNFT(t, b.node())
	// Counters and remaining timeouts may differ.
	err := n.load(`table inet more {
		set seen { type ipv4_addr; flags timeout; elements = { 10.0.0.1 timeout 1h } }
		map ports { type inet_proto . inet_service : verdict; elements = { tcp . 80 : drop } }
		chain c { type filter hook input priority 10; counter accept; }
	}`)
	testenv.NoError(t, err)
	if err := n.checkReadable(); err != nil {
		t.Error(err)
	}
	text, err := n.list()
	testenv.NoError(t, err)
	for _, want := range []string{"table inet verdicts", "table inet more"} {
		if !strings.Contains(text, want) {
			t.Errorf("listing: got no %q in\n%s", want, text)
		}
	}
	if err := n.load("no such statement"); err == nil || !strings.Contains(err.Error(), "syntax error") {
		t.Errorf("loading an invalid ruleset: got error %v, want nft's syntax error", err)
	}
}

// checkReadable detects all failures. Scripts that behave as nft does with unreadable
// rulesets replace it.
func TestCheckReadableNotices(t *testing.T) {
	b := setUp(t)
	for name, c := range map[string]struct{ script, want string }{
		"aborts":        {`case "$*" in "list ruleset") kill -ABRT $$;; esac`, "aborted"},
		"JSON aborts":   {`case "$*" in *json*) exit 1;; esac`, "exit status 1"},
		"no JSON":       {`case "$*" in *json*) echo '{';; esac`, "no JSON"},
		"no text":       {`case "$*" in *json*) echo '{}';; *stateless*) exit 2;; esac`, "exit status 2"},
		"does not load": {`case "$*" in *json*) echo '{}';; *-f*) exit 3;; esac`, "exit status 3"},
		"changes":       {`case "$*" in *json*) echo '{}';; *) echo $$;; esac`, "changes when its text is loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "nft")
			testenv.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\ncat >/dev/null\n"+c.script+"\n"), 0o700))
			err := nft{t, path, b.node()}.checkReadable()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("checkReadable: got error %v, want one with %q", err, c.want)
			}
		})
	}
}
