//go:build ipvs

package ipvsmode

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
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
	"github.com/vipkit/vipkit/internal/testing/agenttest"
)

// synced is what kube-proxy logs when the kernel has everything.
const synced = "synced"

// beKubeProxy runs the proxiers of kube-proxy's mode ipvs: it programs the objects, and then waits until it is killed.
func beKubeProxy(_ []string, stderr io.Writer) int {
	log := func(text any) { _, _ = fmt.Fprintln(stderr, text) } // A test notices a missing line.
	klog.SetLogger(funcr.New(func(_, text string) {
		if strings.Contains(text, `"error"`) {
			log(text)
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
		log(err)
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
	log(synced)
	select {}
}

// noNode is a source of the Node object that has none.
type noNode struct{}

// Node returns nil.
func (noNode) Node() *v1.Node { return nil }

// runKubeProxy runs kube-proxy on the node until the returned function kills it.
func runKubeProxy(t *testing.T, node *netns.NS) (kill func()) {
	t.Helper()
	p := agenttest.Start(t, node, 5*time.Minute, agenttest.Command(t))
	p.Await(synced)
	return p.Kill
}
