//go:build ipvs

package agent

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// These tests need a kernel with IPVS.

func TestIPVS(t *testing.T) {
	need(t, "iptables-restore")
	serves(t, ipvsMode)
}

// TestIPVSModeChanges checks that each mode removes what the other ones have programmed, that
// no new connection fails meanwhile, and that -cleanup-ipvs=false leaves mode ipvs.
func TestIPVSModeChanges(t *testing.T) {
	nft := netnstest.NFT(t)
	need(t, "iptables-save")
	need(t, "ipvsadm")
	w := newWorld(t, "mode: ipvs\n")
	p := w.start()
	p.Await("msg=serving")
	w.wantAnswer(virtualIP, "8080")
	p.Terminate(stopped)
	check := w.load()
	for _, mode := range []string{nftablesMode, ipvsMode, iptablesMode, ipvsMode} {
		w.setMode(mode)
		p := w.start()
		p.Await("msg=serving")
		w.wantAnswer(virtualIP, "8080")
		if mode != ipvsMode {
			w.awaitNoIPVS()
		}
		if mode == nftablesMode {
			check() // Until there are no new ones, IPVS knows closed connections whose ports they use.
		}
		w.wantOnly(nft, mode)
		p.Terminate(stopped)
		if mode == nftablesMode {
			check = w.load()
		}
	}
	check()
	if status := start(t, w.node.NS, "-cleanup", "-cleanup-ipvs=false").Wait(); status != 0 {
		t.Errorf("status of -cleanup -cleanup-ipvs=false: got %d, want 0", status)
	}
	w.wantAnswer(virtualIP, "8080")
	if status := start(t, w.node.NS, "-cleanup").Wait(); status != 0 {
		t.Errorf("status of -cleanup: got %d, want 0", status)
	}
	w.wantAnswer(virtualIP, "")
	w.wantOnly(nft, "")
}

// TestCleanupAfterUnloadingIPVS checks that -cleanup removes what mode ipvs has left if another program
// has unloaded ip_vs, and does not load it.
func TestCleanupAfterUnloadingIPVS(t *testing.T) {
	nft := netnstest.NFT(t)
	need(t, "iptables-save")
	need(t, "ipvsadm")
	w := newWorld(t, "mode: ipvs\n")
	p := w.start()
	p.Await("msg=serving")
	p.Terminate(stopped)
	runIn(t, w.node.NS, "sh", "-c", "ipvsadm -C; for p in iptables ip6tables; do for t in mangle nat; do $p -t $t -F; done; done")
	netnstest.Unload(t, "ip_vs")
	if status := start(t, w.node.NS, "-cleanup").Wait(); status != 0 {
		t.Errorf("status of -cleanup: got %d, want 0", status)
	}
	if loaded := runIn(t, w.node.NS, "cat", "/proc/modules"); strings.Contains("\n"+loaded, "\nip_vs ") {
		t.Errorf("modules after -cleanup: got\n%s\nwant no ip_vs", loaded)
	}
	w.wantOnly(nft, "")
}

// awaitNoIPVS waits until the device and the sets of mode ipvs are gone, which go last.
func (w *world) awaitNoIPVS() {
	w.t.Helper()
	var got string
	for end := time.Now().Add(3 * patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got = runIn(w.t, w.node.NS, "sh", "-c", "ip link; ipset list -n"); !strings.Contains(strings.ToLower(got), "vipkit-") {
			return
		}
	}
	w.t.Errorf("%v after another mode serves: got\n%s\nwant nothing of mode ipvs:\n%s", 3*patience, got, runIn(w.t, w.node.NS, "ipvsadm", "-Ln"))
}

// TestIPVSInAContainer checks that the agent serves in a container, in which /proc/sys is
// read-only, when -init-only has run with more privileges. Before, it says so.
func TestIPVSInAContainer(t *testing.T) {
	for _, program := range []string{"unshare", "setpriv", "iptables-restore"} {
		need(t, program)
	}
	w := newWorld(t, "mode: ipvs\nipvs: {strictARP: true}\n")
	arp := func() string { return runIn(t, w.node.NS, "sysctl", "-n", "net.ipv4.conf.all.arp_ignore") }
	p := w.startInContainer()
	p.Await("some settings of mode ipvs not set; run -init-only with more privileges", "/proc/sys/", "read-only file system")
	p.Await("level=ERROR", "/proc/sys/", "read-only file system")
	if status := w.start("-init-only").Wait(); status != 0 {
		t.Errorf("status of -init-only: got %d, want 0", status)
	}
	p.Await("msg=serving", "ports=1")
	w.wantAnswer(virtualIP, "8080")
	if got := arp(); got != "1\n" {
		t.Errorf("arp_ignore: got %q, want 1", got)
	}
	p.Terminate(stopped)
	again := w.startInContainer()
	again.Await("msg=serving", "operations=0 ")
	again.Terminate(stopped)
	if n := again.Count("run -init-only"); n > 0 {
		t.Errorf("lines about -init-only after it ran: got %d, want none", n)
	}
	if status := start(t, w.node.NS, "-cleanup").Wait(); status != 0 {
		t.Errorf("status of -cleanup: got %d, want 0", status)
	}
}

// startInContainer starts the program as in the container of deploy/daemonset.yaml.
func (w *world) startInContainer() *agenttest.Program {
	w.t.Helper()
	cmd := exec.Command("unshare", "--mount", "sh", "-c", "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && "+
		"exec setpriv --bounding-set=-all,+net_admin,+net_raw --inh-caps=-all --no-new-privs \"$@\"", "sh")
	cmd.Args = append(cmd.Args, agenttest.Command(w.t, "-config", w.config, "-hostname-override", "node-1").Args...)
	return agenttest.Start(w.t, w.node.NS, patience, cmd)
}

// wantOnly checks that only a mode has something in the kernel.
func (w *world) wantOnly(nft, mode string) {
	w.t.Helper()
	for _, c := range []struct {
		mode, text string
		command    []string
	}{
		{ipvsMode, "10.96.0.10:80", []string{"ipvsadm", "-Ln"}},
		{ipvsMode, "vipkit-ipvs0", []string{"ip", "link"}},
		{ipvsMode, "VIPKIT-", []string{"ipset", "list", "-n"}},
		{ipvsMode, "VIPKIT-", []string{"iptables-save"}},
		{iptablesMode, "KUBE-", []string{"iptables-save"}},
		{nftablesMode, "table ip vipkit", []string{nft, "list", "tables"}},
	} {
		out := runIn(w.t, w.node.NS, c.command...)
		if has := strings.Contains(out, c.text); has != (c.mode == mode) {
			w.t.Errorf("mode %q: %q in the output of %q: got %t\n%s", mode, c.text, c.command, has, out)
		}
	}
}
