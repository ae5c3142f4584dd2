//go:build ipvs

package ipvsmode

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/examples/kubeproxy/ipvstakeover"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) {
	if os.Getenv(kubeProxyVariable) != "" {
		os.Exit(beKubeProxy())
	}
	os.Exit(netnstest.Main(m, testenv.Processes))
}

// TestToIPVS takes over from kube-proxy to the backend ipvs: open connections go on, what
// kube-proxy has left goes, and what stays is what a first Apply makes.
func TestToIPVS(t *testing.T) {
	w := newWorld(t)
	kill := runKubeProxy(t, w.node)
	all := w.openAll(t)
	kill()
	run(t, w.node, "ipvsadm -A -t 198.51.100.9:80 -s wlc")
	testenv.NoError(t, w.node.Do(func() error {
		return errors.Join(ipvs.PrepareNode(t.Context(), ipvs.Options{}), ipvstakeover.Adopt(nil))
	}))
	b := start(t, w.node, func() (proxy.Backend, error) { return ipvs.New(ipvs.Options{}) })
	goOn(t, "when the backend serves", all)
	if err := cleanUp(t, w.node); err != nil {
		t.Errorf("removing what kube-proxy has left: got error %v, want none", err)
	}
	goOn(t, "after the removal", all)
	isNothingLeft(t, w.node)
	w.openAll(t)
	run(t, w.node, "ipvsadm -D -t 198.51.100.9:80")
	fresh := newWorld(t)
	start(t, fresh.node, func() (proxy.Backend, error) { return ipvs.New(ipvs.Options{}) })
	if diff := cmp.Diff(state(t, fresh.node), state(t, w.node)); diff != "" {
		t.Errorf("objects in the kernel (-after a first Apply +got):\n%s", diff)
	}
	before := operations(t, b)
	apply(t, b)
	testenv.Same(t, 0, operations(t, b)-before, "operations of a resync")
}

// TestToNFTables takes over to the backend nftables: what kube-proxy has left goes, with its connections.
func TestToNFTables(t *testing.T) {
	w := newWorld(t)
	kill := runKubeProxy(t, w.node)
	all := w.openAll(t)
	kill()
	start(t, w.node, func() (proxy.Backend, error) { return nftables.New(nftables.Options{}) })
	goOn(t, "when the backend serves", all)
	if err := cleanUp(t, w.node); err != nil {
		t.Errorf("removing what kube-proxy has left: got error %v, want none", err)
	}
	isNothingLeft(t, w.node)
	w.openAll(t)
}

func goOn(t *testing.T, when string, all []*conversation) {
	t.Helper()
	for _, c := range all {
		c.goesOn(t, when)
	}
}

// start opens a backend on the node, and applies the objects.
func start(t *testing.T, node *netns.NS, open func() (proxy.Backend, error)) (b proxy.Backend) {
	t.Helper()
	err := node.Do(func() (err error) {
		b, err = open()
		return err
	})
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() }) // The test has ended.
	apply(t, b)
	return b
}

// apply applies the objects as a new process does.
func apply(t *testing.T, b proxy.Backend) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{
		NodeName:      nodeName,
		NodeAddresses: []netip.Addr{netip.MustParseAddr(nodeIP), netip.MustParseAddr(nodeIP6)},
		LocalTraffic:  proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix(podRange), netip.MustParsePrefix(podRange6)}},
	})
	services, endpoints := everyKind()
	for _, s := range services {
		tracker.UpdateService(s)
	}
	for _, s := range endpoints {
		tracker.UpdateEndpointSlice(s)
	}
	tracker.Synced()
	next, err := tracker.Next(ctx, proxy.Snapshot{})
	testenv.NoError(t, err)
	testenv.NoError(t, b.Apply(ctx, proxy.Snapshot{}, next))
}

func operations(t *testing.T, b proxy.Backend) uint64 {
	t.Helper()
	return b.Abilities().Operations()
}

// cleanUp removes what kube-proxy's modes ipvs and iptables have left, as an agent does.
func cleanUp(t *testing.T, node *netns.NS) error {
	t.Helper()
	return node.Do(func() error {
		b, err := iptables.New(iptables.Options{Identity: backends.Identity{Name: "kube"}})
		if err != nil {
			return err
		}
		return errors.Join(b.Cleanup(t.Context()), b.Close(), ipvstakeover.Cleanup(t.Context(), nil))
	})
}

// isNothingLeft checks that nothing of kube-proxy is left, and that the virtual server of
// another program is.
func isNothingLeft(t *testing.T, node *netns.NS) {
	t.Helper()
	for _, command := range []string{"iptables-save", "ip6tables-save", "ipset list -n", "ip link"} {
		if got := run(t, node, command); strings.Contains(strings.ToUpper(got), "KUBE-") {
			t.Errorf("%s: got\n%s\nwant nothing of kube-proxy", command, got)
		}
	}
}

// state returns the virtual servers, real servers, sets and addresses on the node, sorted.
func state(t *testing.T, node *netns.NS) []string {
	t.Helper()
	var lines []string
	for _, command := range []string{"ipvsadm -Sn", "ipset save", "ip -br addr show dev vipkit-ipvs0"} {
		for line := range strings.Lines(run(t, node, command)) {
			if command == "ip -br addr show dev vipkit-ipvs0" {
				fields := strings.Fields(line)
				slices.Sort(fields)
				line = strings.Join(fields, " ")
			}
			if create, ok := strings.CutPrefix(line, "create "); ok {
				line = strings.Fields(create)[0] // Header of a set: its random seed differs.
			}
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}

func run(t *testing.T, ns *netns.NS, command string) string {
	t.Helper()
	words := strings.Fields(command)
	out, err := netnstest.Run(t, ns, "", words[0], words[1:]...)
	testenv.NoError(t, err)
	return out
}
