//go:build ipvs

package ipvsmode

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilsysctl "k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/klog/v2"
	kubeconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	kubeipvs "k8s.io/kubernetes/pkg/proxy/ipvs"
	utilipset "k8s.io/kubernetes/pkg/proxy/ipvs/ipset"
	utilipvs "k8s.io/kubernetes/pkg/proxy/ipvs/util"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// kubeProxyVariable makes this program run the proxiers of kube-proxy's mode ipvs.
const kubeProxyVariable = "VIPKIT_KUBE_PROXY"

// synced is what it writes when the kernel has everything.
const synced = "synced"

// beKubeProxy programs the objects, and then waits until it is killed or the test has ended.
func beKubeProxy() int {
	klog.SetLogger(funcr.New(func(_, text string) {
		if strings.Contains(text, `"error"`) {
			fmt.Fprintln(os.Stderr, text)
		}
	}, funcr.Options{}))
	bit, no := int32(14), false
	c := &kubeconfig.KubeProxyConfiguration{SyncPeriod: metav1.Duration{Duration: time.Hour}, MinSyncPeriod: metav1.Duration{Duration: time.Second}}
	c.IPTables.MasqueradeBit, c.IPTables.LocalhostNodePorts = &bit, &no
	health := healthcheck.NewProxyHealthServer("", time.Hour, noNode{})
	p, err := kubeipvs.NewDualStackProxier(context.Background(), c,
		map[v1.IPFamily]utiliptables.Interface{
			v1.IPv4Protocol: utiliptables.New(utiliptables.ProtocolIPv4),
			v1.IPv6Protocol: utiliptables.New(utiliptables.ProtocolIPv6),
		},
		utilipvs.New(), utilipset.New(), utilsysctl.New(),
		map[v1.IPFamily]proxyutil.LocalTrafficDetector{
			v1.IPv4Protocol: proxyutil.NewDetectLocalByCIDR(podRange),
			v1.IPv6Protocol: proxyutil.NewDetectLocalByCIDR(podRange6),
		},
		nodeName,
		map[v1.IPFamily]net.IP{v1.IPv4Protocol: net.ParseIP(nodeIP), v1.IPv6Protocol: net.ParseIP(nodeIP6)},
		nil, health, false)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	services, slices := everyKind()
	for _, s := range services {
		p.OnServiceAdd(s)
	}
	for _, s := range slices {
		p.OnEndpointSliceAdd(s)
	}
	p.OnServiceSynced()
	p.OnEndpointSlicesSynced()
	fmt.Println(synced)
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test
	return 0
}

// noNode is a source of the Node object that has none.
type noNode struct{}

// Node returns nil.
func (noNode) Node() *v1.Node { return nil }

// runKubeProxy runs kube-proxy on the node until the returned function kills it.
func runKubeProxy(t *testing.T, node *netns.NS) (kill func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), kubeProxyVariable+"=1", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	testenv.NoError(t, err)
	testenv.NoError(t, node.Do(cmd.Start))
	killed := false
	kill = func() {
		if !killed {
			killed = true
			cancel()
			_ = cmd.Wait() // It is killed.
		}
	}
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != synced {
		t.Fatalf("kube-proxy: got %q, error %v, want %q", line, err, synced)
	}
	return kill
}
