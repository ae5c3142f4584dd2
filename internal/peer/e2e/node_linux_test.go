package e2e_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/servertest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// apiAddress is the address of the API server in the namespace of each node.
const apiAddress = "127.0.0.1:6443"

// node is a machine of the cluster.
type node struct {
	t         *testing.T
	ns        *netns.NS
	name      string
	mode      string // of the agent
	addresses pair
	podRange  pair
	cable     string // name of its interface in the fabric
	pods      int    // number of pods that were started

	flags  []string
	folder string              // of the agent's files
	agent  *servertest.Process // replaces kube-proxy
}

// startAgent runs the program in the node's namespace, until it is stopped or the test ends.
func (n *node) startAgent(program string) {
	n.t.Helper()
	n.start(program, n.flags...)
}

// start starts a program with other flags.
func (n *node) start(program string, flags ...string) {
	n.t.Helper()
	command := exec.Command(program, flags...)
	command.Dir = n.folder
	n.agent = servertest.Start(n.t, n.logPath(), command, n.ns.Do)
	n.t.Cleanup(func() { n.stopAgent(syscall.SIGTERM) })
}

// stopAgent sends the agent a signal and waits for its end.
func (n *node) stopAgent(signal os.Signal) {
	n.t.Helper()
	if n.agent == nil {
		return
	}
	n.agent.Signal(signal) // If it has ended by itself, Wait returns an error.
	if err := n.agent.Wait(); signal != os.Kill && err != nil {
		n.t.Errorf("the agent of %s: %v\n%s", n.name, err, n.logTail())
	}
	n.agent = nil
}

// awaitSync waits until the agent has applied all Services.
func (n *node) awaitSync() {
	n.t.Helper()
	eventually(n.t, n.name+" is healthy", func() error {
		status, body, err := get(n.ns, "http://127.0.0.1:10256/healthz")
		if err == nil && (status != http.StatusOK || !strings.Contains(body, `"status":{`)) {
			err = fmt.Errorf("got status %d: %s", status, body)
		}
		return err
	})
}

const modeFlag = "-proxy-mode="

// setMode sets the mode of the next agent.
func (n *node) setMode(mode string) {
	i := slices.Index(n.flags, modeFlag+n.mode)
	n.mode, n.flags[i] = mode, modeFlag+mode
}

// run runs the program once, with further flags.
func (n *node) run(program string, flags ...string) {
	n.t.Helper()
	_, err := netnstest.Run(n.t, n.ns, "", program, append(flags, n.flags...)...)
	testenv.NoError(n.t, err)
}

// logTail returns the end of the agent's log.
func (n *node) logTail() string {
	const most = 32768
	text, err := os.ReadFile(n.logPath())
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}

func (n *node) logPath() string { return filepath.Join(n.folder, "log") }

// writeKubeconfig writes a kubeconfig for the API server, and gives its path.
func (n *node) writeKubeconfig(name, token string) string {
	n.t.Helper()
	path := filepath.Join(n.folder, name)
	controlplane.Kubeconfig(n.t, path, "https://"+apiAddress, token)
	return path
}

// configure sets the flags of the agent.
func (n *node) configure(token string) {
	n.t.Helper()
	n.folder = n.t.TempDir()
	n.flags = []string{
		"-kubeconfig=" + n.writeKubeconfig("kubeconfig", token), "-hostname-override=" + n.name, modeFlag + n.mode,
		"-v=1", "-detect-local-mode=ClusterCIDR", "-cluster-cidr=10.244.0.0/16,fd00:244::/48",
		// The limit of conntrack holds for the whole machine.
		"-conntrack-max-per-core=0", "-conntrack-min=0",
	}
}

// relay forwards connections to apiAddress in the namespace to the server that dial connects
// to.
func (n *node) relay(dial func(ctx context.Context) (net.Conn, error)) {
	n.t.Helper()
	l, err := n.ns.Listen(n.t.Context(), "tcp", apiAddress)
	testenv.NoError(n.t, err)
	controlplane.Relay(n.t, l, dial)
}

// tables lists the ruleset in nf_tables of the node.
func (n *node) tables(nft string) string {
	n.t.Helper()
	out, err := netnstest.Run(n.t, n.ns, "", nft, "list", "ruleset")
	testenv.NoError(n.t, err)
	return strings.TrimSpace(out)
}

// pair is an address, or a range, of each family.
type pair [2]netip.Prefix

func parsePair(format4, format6 string, args ...any) pair {
	return pair{
		netip.MustParsePrefix(fmt.Sprintf(format4, args...)),
		netip.MustParsePrefix(fmt.Sprintf(format6, args...)),
	}
}

// String returns the text of a [lab.Host].
func (p pair) String() string { return fmt.Sprint(p[0], " ", p[1]) }

// fabric is the router of a network.
const fabric = "fabric"

// network connects the nodes: a router with a link to each of them, and one to a host outside
// of the cluster.
type network struct {
	t       *testing.T
	lab     *lab.Lab
	outside *netns.NS
	cables  int
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{t: t, lab: lab.New(t, lab.Host{Name: fabric})}
	n.outside = n.attach(parsePair("192.0.2.10/32", "2001:db8::10/128"))
	return n
}

// attach makes a host with an address of each family, and links it to the router. Hosts share no link, so
// the router has the same address on all links.
func (n *network) attach(addresses pair) *netns.NS {
	n.t.Helper()
	n.cables++
	return n.lab.Add(lab.Host{
		Name: fmt.Sprintf("host%d", n.cables-1), Uplink: fabric, Addrs: addresses.String(), Gateway: "172.18.255.1/32 fe80::f/64",
	})
}

// addRoute routes addresses in the fabric to a node.
func (n *network) addRoute(to pair, node *node) {
	n.t.Helper()
	for i, p := range to {
		n.must(n.lab.NS(fabric).AddRoute(netns.Route{To: p, Link: node.cable, Via: node.addresses[i].Addr()}))
	}
}

func (n *network) must(errs ...error) {
	n.t.Helper()
	for _, err := range errs {
		testenv.NoError(n.t, err)
	}
}
