package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/conntrack"
)

// TestCleanupOfBothFlavours checks that -cleanup removes the rules of kube-proxy of both
// flavours of iptables.
func TestCleanupOfBothFlavours(t *testing.T) {
	flavours := [...]string{"iptables-legacy", "iptables-nft"}
	for _, f := range flavours {
		need(t, f)
	}
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	node := netnstest.NewNS(t)
	run := func(args ...string) string {
		t.Helper()
		return runIn(t, node, args...)
	}
	for _, f := range flavours {
		run(f, "-t", "nat", "-N", "KUBE-SERVICES")
		run(f, "-t", "nat", "-A", "PREROUTING", "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES")
		run(f, "-t", "nat", "-N", "OTHER")
	}
	if status := start(t, node, "-cleanup").Wait(); status != 0 {
		t.Errorf("status of -cleanup: got %d, want 0", status)
	}
	for _, f := range flavours {
		got := run(f, "-t", "nat", "-S")
		if strings.Contains(got, "KUBE-") || !strings.Contains(got, "-N OTHER") {
			t.Errorf("%s: got\n%swant no chain of kube-proxy, and the other one", f, got)
		}
	}
}

// TestFirewallStays checks that -cleanup keeps the rule by which other machines do not reach 127.0.0.0/8,
// with its jumps: kube-proxy does not unset route_localnet either.
func TestFirewallStays(t *testing.T) {
	for _, f := range []string{"iptables-legacy", "iptables-nft"} {
		need(t, f)
		t.Run(f, func(t *testing.T) {
			t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
			node := netnstest.NewNS(t)
			for _, rule := range []string{
				"-N KUBE-FIREWALL", "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
				"-A INPUT -j KUBE-FIREWALL", "-A OUTPUT -j KUBE-FIREWALL", "-t nat -N KUBE-SERVICES",
			} {
				runIn(t, node, append([]string{f}, strings.Fields(rule)...)...)
			}
			want := runIn(t, node, f, "-S")
			if status := start(t, node, "-cleanup").Wait(); status != 0 {
				t.Errorf("status of -cleanup: got %d, want 0", status)
			}
			if got := runIn(t, node, f, "-S"); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
			if got := runIn(t, node, f, "-t", "nat", "-S"); strings.Contains(got, "KUBE-") {
				t.Errorf("got\n%swant no chain of kube-proxy", got)
			}
		})
	}
}

// TestLeftoversWithARefusedService checks that one refused Service does not keep the rules of
// kube-proxy, which would get stale for all Services; and that an error of all of them does.
func TestLeftoversWithARefusedService(t *testing.T) {
	const iptables = "iptables-legacy"
	need(t, iptables)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	node := netnstest.NewNS(t)
	runIn(t, node, iptables, "-t", "nat", "-N", "KUBE-SERVICES")
	err := node.Do(func() (err error) {
		a := &instance{config: newConfig("linux"), mode: nftablesMode, log: logr.Discard(), pauses: pauses()}
		a.reported.events = idleEvents(t)
		if a.flows, err = conntrack.New(conntrack.Options{}); err != nil {
			return err
		}
		applied, refused := proxy.NewSnapshot(&proxy.Node{}), proxy.PortErrors{{Port: "http"}: io.ErrNoProgress}
		a.synced(t.Context(), proxy.Sync{Err: io.ErrNoProgress})
		if a.serving || a.cleaned {
			t.Errorf("after an error of all Services: got serving %t, cleaned %t, want neither", a.serving, a.cleaned)
		}
		a.synced(t.Context(), proxy.Sync{Snapshot: applied, Applied: applied, Err: refused, Refused: refused})
		if !a.serving || !a.cleaned {
			t.Errorf("after one refused Service: got serving %t, cleaned %t, want both", a.serving, a.cleaned)
		}
		return a.flows.Close()
	})
	testenv.NoError(t, err)
	if got := runIn(t, node, iptables, "-t", "nat", "-S"); strings.Contains(got, "KUBE-") {
		t.Errorf("%s: got\n%swant no chain of kube-proxy", iptables, got)
	}
}

// TestLeftoversAreRetried checks that rules of kube-proxy that could not be removed at first
// are removed later, without a restart.
func TestLeftoversAreRetried(t *testing.T) {
	const iptables = "iptables-legacy"
	need(t, iptables)
	w := newWorld(t, "mode: nftables\n")
	folder := filepath.Join(t.TempDir(), "missing")
	lock := filepath.Join(folder, "lock")
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	runIn(t, w.node.NS, iptables, "-t", "nat", "-N", "KUBE-SERVICES")
	t.Setenv("XTABLES_LOCKFILE", lock)
	p := w.start()
	p.AwaitEach([]string{"rules of another mode", "remain", lock}, []string{"msg=serving"})
	w.wantAnswer(virtualIP, "8080")
	testenv.NoError(t, os.Mkdir(folder, 0o700))
	var got string
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got = runIn(t, w.node.NS, iptables, "-t", "nat", "-S"); !strings.Contains(got, "KUBE-") {
			break
		}
	}
	if strings.Contains(got, "KUBE-") {
		t.Errorf("%s: got\n%swant no chain of kube-proxy", iptables, got)
	}
	p.Terminate(stopped)
	if n := p.Count("msg=serving"); n != 1 {
		t.Errorf("lines msg=serving: got %d, want one", n)
	}
}

// TestChainsWithoutPrograms checks that the log says so if chains of iptables cannot be removed, since
// the programs are missing; a flavour that is missing beside another one is no news.
func TestChainsWithoutPrograms(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	r := removal{log: logr.FromSlogHandler(slog.NewTextHandler(&out, nil))}
	missing := fmt.Errorf("%w: %w", proxy.ErrUnsupported, exec.ErrNotFound)
	r.removed(anyFlavour+"-legacy", missing)
	if got := out.String(); got != "" {
		t.Errorf("one flavour: got %q, want nothing", got)
	}
	r.removed(anyFlavour, missing)
	if got := out.String(); !strings.Contains(got, "level=INFO") || !strings.Contains(got, "not removed: a program is missing") {
		t.Errorf("no programs: got %q, want that chains are not removed", got)
	}
	if err := errors.Join(r.errs...); err != nil {
		t.Errorf("got error %v, want none", err)
	}
}

// TestCleanupOfSets checks that -cleanup removes sets and rules of mode ipvs also from a kernel without
// ip_vs, as after another program has unloaded it, and no set of another program.
func TestCleanupOfSets(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"ipset", "iptables"} {
		need(t, program)
	}
	node := netnstest.NewNS(t)
	runIn(t, node, "sh", "-c", `set -e
ipset create VIPKIT-IPVS-IPS hash:ip
ipset create OTHER hash:ip
iptables -N VIPKIT-IPVS-FORWARD
iptables -A VIPKIT-IPVS-FORWARD -m set --match-set VIPKIT-IPVS-IPS dst -j DROP
iptables -I FORWARD -m conntrack --ctstate NEW -j VIPKIT-IPVS-FORWARD`)
	if status := start(t, node, "-cleanup").Wait(); status != 0 {
		t.Errorf("status of -cleanup: got %d, want 0", status)
	}
	if got := runIn(t, node, "ipset", "list", "-n"); got != "OTHER\n" {
		t.Errorf("sets: got %q, want only OTHER", got)
	}
	if got := runIn(t, node, "iptables-save"); strings.Contains(got, "VIPKIT") {
		t.Errorf("rules: got\n%s\nwant none of mode ipvs", got)
	}
}

// TestModeIPTablesStays checks that the agent in mode iptables, which uses names of kube-proxy, removes what
// kube-proxy's mode ipvs has left and no rule of its own: without its jumps, no Service is served.
func TestModeIPTablesStays(t *testing.T) {
	for _, program := range []string{"iptables", "iptables-save", "iptables-restore"} {
		need(t, program)
	}
	node := netnstest.NewNS(t)
	runIn(t, node, "ip", "link", "add", "kube-ipvs0", "type", "bridge") // not kube-proxy's: the usual kernel of tests has no type dummy
	c := newConfig("linux")
	ctx := t.Context()
	rules := func() string {
		t.Helper()
		return strings.Join(slices.DeleteFunc(strings.Split(runIn(t, node, "iptables-save"), "\n"), func(line string) bool {
			return strings.HasPrefix(line, "#")
		}), "\n")
	}
	var want string
	testenv.NoError(t, node.Do(func() error {
		b, err := c.open(iptablesMode)
		if err != nil {
			return err
		}
		runIn(t, node, "iptables", "-N", "KUBE-IPVS-FILTER")
		runIn(t, node, "iptables", "-I", "INPUT", "-m", "comment", "--comment", "kubernetes ipvs access filter", "-j", "KUBE-IPVS-FILTER")
		if err := b.Apply(ctx, proxy.Snapshot{}, proxy.NewSnapshot(&proxy.Node{Name: "node-1"})); err != nil {
			return errors.Join(err, b.Close())
		}
		want = rules()
		return errors.Join(c.cleanUp(ctx, iptablesMode, logr.Discard()), b.Close())
	}))
	if got := rules(); got != want {
		t.Errorf("rules: got\n%s\nwant the rules of mode iptables\n%s", got, want)
	}
	if strings.Contains(want, "IPVS") || !strings.Contains(want, "-j KUBE-SERVICES") {
		t.Errorf("rules: got\n%s\nwant the rules of mode iptables alone", want)
	}
}
