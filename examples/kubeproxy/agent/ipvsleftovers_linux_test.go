//go:build ipvs

package agent

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// kubeProxyIPVS is what kube-proxy's mode ipvs leaves, in part: with a Service at 10.96.0.30:80, a
// node port that the cluster does not have any more, and its chains. A virtual server of another
// program is at 198.51.100.9:80; the one at 10.96.0.31:80 is excluded.
const kubeProxyIPVS = `set -e
echo 1 > /proc/sys/net/ipv4/vs/conntrack
echo 1 > /proc/sys/net/ipv4/vs/expire_nodest_conn
ip link add kube-ipvs0 type dummy
ip addr add 10.96.0.30/32 dev kube-ipvs0
ip addr add 10.96.0.31/32 dev kube-ipvs0
ipvsadm -A -t 10.96.0.30:80 -s rr
ipvsadm -a -t 10.96.0.30:80 -r POD:7000 -m -w 1
ipvsadm -A -t 10.96.0.31:80 -s wlc
ipvsadm -A -t THISNODE:30088 -s rr
ipvsadm -A -t 198.51.100.9:80 -s rr
ipset create KUBE-CLUSTER-IP hash:ip,port maxelem 65536
ipset add KUBE-CLUSTER-IP 10.96.0.30,tcp:80
ipset create KUBE-NODE-PORT-TCP bitmap:port range 0-65535
ipset add KUBE-NODE-PORT-TCP 30088
ipset create KUBE-IPVS-IPS hash:ip
ipset create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6
ipset create OTHER hash:ip
iptables -t nat -N KUBE-MARK-MASQ
iptables -t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
iptables -t nat -N KUBE-NODE-PORT
iptables -t nat -N KUBE-LOAD-BALANCER
iptables -t nat -A KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
iptables -t nat -N KUBE-SERVICES
iptables -t nat -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
iptables -t nat -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
iptables -t nat -A KUBE-SERVICES -j KUBE-LOAD-BALANCER
iptables -t nat -I PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
iptables -N KUBE-IPVS-FILTER
iptables -A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
iptables -I INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
iptables -N OTHER
`

// TestKubeProxyIPVS checks that the agent, in each mode, takes over from kube-proxy's mode ipvs: in mode
// ipvs an open connection goes on, what kube-proxy has left goes, and what is of others stays.
func TestKubeProxyIPVS(t *testing.T) {
	netnstest.NFT(t)
	for _, mode := range []string{ipvsMode, nftablesMode, iptablesMode} {
		t.Run(mode, func(t *testing.T) {
			w, c := kubeProxyWorld(t, mode, "iptables")
			p := w.start()
			p.Await("msg=serving", "ports=2")
			w.wantAnswer(virtualIP, "8080")
			w.awaitNothingLeft()
			if mode == ipvsMode {
				w.wantEcho(c, "after")
			}
			w.closeEcho(w.dialEcho())
			p.Terminate(stopped)
		})
	}
}

// TestKubeProxyIPVSOfAnotherFlavour checks that the agent also removes what kube-proxy's mode ipvs
// left in the flavour of iptables that the agent does not use: rules that refer to sets keep them.
func TestKubeProxyIPVSOfAnotherFlavour(t *testing.T) {
	netnstest.NFT(t)
	need(t, "iptables-legacy")
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	for _, mode := range []string{ipvsMode, nftablesMode} {
		t.Run(mode, func(t *testing.T) {
			w, c := kubeProxyWorld(t, mode, "iptables-legacy")
			w.closeEcho(c)
			p := w.start()
			p.Await("msg=serving", "ports=2")
			w.awaitNothingLeft()
			w.wantAnswer(virtualIP, "8080")
			w.closeEcho(w.dialEcho())
			p.Terminate(stopped)
		})
	}
}

// TestKubeProxyIPVSWithoutModule checks that what kube-proxy has left goes, virtual servers that the agent has
// adopted too, if the agent cannot serve in mode ipvs, and serves in the next one.
func TestKubeProxyIPVSWithoutModule(t *testing.T) {
	netnstest.NFT(t)
	w, c := kubeProxyWorld(t, ipvsMode, "iptables")
	w.closeEcho(c)
	netnstest.WithoutModule(t, "xt_ipvs")
	p := w.start()
	p.Await("mode unsupported on this node; trying the next", "load the kernel module xt_ipvs")
	p.Await("msg=serving", "ports=2")
	w.awaitNothingLeft()
	w.closeEcho(w.dialEcho())
	p.Terminate(stopped)
}

// TestKubeProxyIPVSUnloaded checks that the agent removes what kube-proxy's mode ipvs has left if ip_vs
// was unloaded since, and does not load it again.
func TestKubeProxyIPVSUnloaded(t *testing.T) {
	netnstest.NFT(t)
	w, c := kubeProxyWorld(t, nftablesMode, "iptables")
	w.closeEcho(c)
	runIn(t, w.node.NS, "ipvsadm", "-C")
	netnstest.Unload(t, "ip_vs")
	p := w.start()
	p.Await("msg=serving", "ports=2")
	if got, left := w.awaitNoneOf("ip link; ipset list -n; iptables-save", kubeProxyNames()...); left != "" {
		t.Errorf("%s of kube-proxy is left:\n%s", left, got)
	}
	if hasIPVS() {
		t.Error("ip_vs is loaded again")
	}
	w.closeEcho(w.dialEcho())
	p.Terminate(stopped)
}

// kubeProxyWorld returns a node that kube-proxy's mode ipvs has left, with an open connection. The
// rules are those of a program of iptables.
func kubeProxyWorld(t *testing.T, mode, program string) (*world, *lab.Conn) {
	t.Helper()
	for _, program := range []string{"ipvsadm", "ipset", program} {
		need(t, program)
	}
	w := newWorld(t, "mode: "+mode+"\nipvs: {excludeCIDRs: [10.96.0.31/32]}\n")
	w.serveEcho()
	runIn(t, w.node.NS, "sh", "-c", strings.NewReplacer("POD", podIP, "THISNODE", nodeIP, "iptables ", program+" ").Replace(kubeProxyIPVS))
	return w, w.dialEcho()
}

// serveEcho adds the Service echo at 10.96.0.30:80.
func (w *world) serveEcho() {
	w.t.Helper()
	echo := service("echo", "10.96.0.30")
	echo.Spec.Ports[0].NodePort = 0
	w.api.put("services", echo)
	w.api.put("endpointslices", slice("echo", 7000))
}

// dialEcho connects to the Service echo.
func (w *world) dialEcho() *lab.Conn {
	w.t.Helper()
	c, err := lab.Dial(w.t.Context(), w.node.Client, "tcp", "10.96.0.30:80")
	testenv.NoError(w.t, err)
	w.t.Cleanup(func() { _ = c.Close() }) // It is closed before unless the test fails.
	w.wantEcho(c, "new")
	return c
}

// closeEcho closes a connection without a reset, so that IPVS remembers it for some time.
func (w *world) closeEcho(c *lab.Conn) {
	w.t.Helper()
	if err := c.Conn.Close(); err != nil {
		w.t.Error(err)
	}
}

// awaitNothingLeft waits until nothing of kube-proxy's mode ipvs is left, and checks that
// objects of others are.
func (w *world) awaitNothingLeft() {
	w.t.Helper()
	got, left := w.awaitNoneOf("ip link; ipset list -n; iptables-save; iptables-legacy-save; ipvsadm -Ln", append(kubeProxyNames(), ":30088")...)
	if left != "" {
		w.t.Fatalf("%s of kube-proxy is left:\n%s", left, got)
	}
	for _, text := range []string{"198.51.100.9:80", "10.96.0.31:80", "OTHER"} {
		if !strings.Contains(got, text) {
			w.t.Errorf("%s of another program is gone:\n%s", text, got)
		}
	}
}

// kubeProxyNames are in names of objects of kube-proxy's mode ipvs.
func kubeProxyNames() []string {
	return []string{"kube-ipvs0", "KUBE-CLUSTER-IP\n", "KUBE-NODE-PORT", "KUBE-IPVS", "KUBE-6", "KUBE-LOAD-BALANCER"}
}

// awaitNoneOf waits until a command prints none of some texts. It returns what it printed last, and one of
// the texts that was in it.
func (w *world) awaitNoneOf(command string, texts ...string) (got, left string) {
	w.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		got, left = runIn(w.t, w.node.NS, "sh", "-c", command), ""
		for _, text := range texts {
			if strings.Contains(got, text) {
				left = text
			}
		}
		if left == "" {
			break
		}
	}
	return got, left
}

// wantEcho asks over a connection.
func (w *world) wantEcho(c *lab.Conn, when string) {
	w.t.Helper()
	if _, err := c.Ask(w.t.Context()); err != nil {
		w.t.Fatalf("%s: got error %v over the connection, want an answer", when, err)
	}
}
