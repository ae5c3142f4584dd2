package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testReplace replaces kube-proxy on a node with exactly the documented commands, under load,
// and then goes back to kube-proxy.
func testReplace(t *testing.T, c *cluster) {
	kubeProxy := controlplane.Build(t, ".", "k8s.io/kubernetes/cmd/kube-proxy")
	s := c.makeService("old", v1.ServiceSpec{Type: v1.ServiceTypeNodePort})
	pods := []*pod{c.startPod("old", c.nodes[0]), c.startPod("old", c.nodes[1])}
	nodes := []*node{c.nodes[0], c.nodes[2]}
	for _, n := range nodes {
		n.configureKubeProxy(t, c.cp.Config().BearerToken)
		n.start(kubeProxy, "--config=config.yaml", "--hostname-override="+n.name)
	}
	var to = c.nodePorts(s)
	to = slices.Concat(to[:2], to[4:]) // The second node has no proxy.
	for _, at := range to {
		reaches(t, c.network.outside, "tcp", at, pods...)
	}
	nft, blocks := netnstest.NFT(t), documentedBlocks(t)
	l := startLoad(t, c.network.outside, 200, to...)
	for _, n := range nodes {
		metrics := n.scrape(t)
		n.stopAgent(os.Kill)
		n.start(c.program, commandOf(t, blocks[0], n.name)...)
		n.requestAsDocumented(t, blocks[1])
		for _, to := range clusterIPs(s) {
			reaches(t, n.ns, "tcp", to, pods...)
			reaches(t, n.ns, "udp", to, pods...)
		}
		n.wantMetrics(t, metrics)
	}
	l.wantNoFailures(t, 20)
	for _, n := range nodes {
		n.stopAgent(os.Interrupt)
		n.run(c.program, "-cleanup")
		n.wantNoRules(t, nft)
		n.start(kubeProxy, "--config=config.yaml", "--hostname-override="+n.name)
		reaches(t, n.ns, "tcp", clusterIPs(s)[0], pods...)
		n.stopAgent(os.Kill) // The agents of later parts remove its rules.
	}
}

// configureKubeProxy writes the configuration of kube-proxy.
func (n *node) configureKubeProxy(t *testing.T, token string) {
	t.Helper()
	n.writeKubeconfig("admin", token)
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" +
		"clientConnection: {kubeconfig: admin}\nmode: " + n.mode + "\nclusterCIDR: 10.244.0.0/16,fd00:244::/48\n" +
		"conntrack: {maxPerCore: 0, min: 0}\n" // How many flows the kernel can track is the machine's business.
	testenv.NoError(t, os.WriteFile(filepath.Join(n.folder, "config.yaml"), []byte(text), 0o600))
}

// documentedBlocks returns the lines of each block of commands in docs/replacing-kube-proxy.md.
func documentedBlocks(t *testing.T) (blocks [][]string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/replacing-kube-proxy.md")
	testenv.NoError(t, err)
	for i, part := range strings.Split(string(text), "```") {
		if i%2 == 1 {
			blocks = append(blocks, strings.Split(strings.TrimSpace(part), "\n"))
		}
	}
	if len(blocks) < 2 {
		t.Fatalf("replacing-kube-proxy.md: blocks of commands on how to replace kube-proxy: got %d, want at least two", len(blocks))
	}
	return blocks
}

// commandOf returns the arguments with which the document starts the agent.
func commandOf(t *testing.T, block []string, node string) []string {
	t.Helper()
	if len(block) != 2 || block[0] != "go -C examples/kubeproxy build -o ../.." {
		t.Fatalf("replacing-kube-proxy.md: commands: got %q, want the build of the agent and its start", block)
	}
	line, ok := strings.CutPrefix(block[1], "sudo ./kubeproxy ")
	if !ok {
		t.Fatalf("replacing-kube-proxy.md: start of the agent: got %q, want sudo ./kubeproxy", block[1])
	}
	return strings.Fields(strings.ReplaceAll(line, "node-1", node))
}

// requestAsDocumented makes the requests of the document, all of which must succeed.
func (n *node) requestAsDocumented(t *testing.T, block []string) {
	t.Helper()
	want := []string{n.mode, `"healthy":true`, "default/kubernetes:https"}
	if len(block) != len(want) {
		t.Fatalf("replacing-kube-proxy.md: commands: got %q, want %d", block, len(want))
	}
	for i, line := range block {
		url := "http://" + strings.Trim(strings.TrimPrefix(line, "curl "), "'")
		eventually(t, fmt.Sprintf("%s returns %q", url, want[i]), func() error {
			status, body, err := get(n.ns, url)
			if err == nil && (status != http.StatusOK || !strings.Contains(body, want[i])) {
				err = fmt.Errorf("got status %d: %s", status, body)
			}
			return err
		})
	}
}
