package sidebyside

import (
	"context"
	"errors"
	"net"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	utilsysctl "k8s.io/component-helpers/node/util/sysctl"
	kube "k8s.io/kubernetes/pkg/proxy"
	kubeconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	kubeiptables "k8s.io/kubernetes/pkg/proxy/iptables"
	kubenftables "k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"
)

var errKubeSync = errors.New("kube-proxy could not write its rules; see its log")

// kubeProxy calls a proxier of kube-proxy like its informers, but syncs each change without a
// pause.
type kubeProxy struct {
	kube.Provider
	health *healthcheck.ProxyHealthServer
}

func newKubeNFTables(withNetlink bool) (dataplane, error) {
	gate := map[string]bool{"NFTablesNetlink": withNetlink}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(gate); err != nil {
		return nil, err
	}
	k := &kubeProxy{health: healthcheck.NewProxyHealthServer("", time.Hour, noNode{})}
	var err error
	k.Provider, err = kubenftables.NewProxier(context.Background(), config(), v1.IPv4Protocol,
		proxyutil.NewDetectLocalByCIDR(podRange), nodeName, net.ParseIP(nodeIP), nil, k.health, false)
	return k, err
}

// newKubeIPTables makes the proxier, which runs the first iptables in the path.
func newKubeIPTables() (dataplane, error) {
	k := &kubeProxy{health: healthcheck.NewProxyHealthServer("", time.Hour, noNode{})}
	var err error
	k.Provider, err = kubeiptables.NewProxier(context.Background(), config(), v1.IPv4Protocol,
		utiliptables.New(utiliptables.ProtocolIPv4), utilsysctl.New(),
		proxyutil.NewDetectLocalByCIDR(podRange), nodeName, net.ParseIP(nodeIP), nil, k.health, false)
	return k, err
}

// config is kube-proxy's default, with periods that do not end within a test.
func config() *kubeconfig.KubeProxyConfiguration {
	bit, no := int32(14), false
	c := &kubeconfig.KubeProxyConfiguration{
		NodePortAddresses: []string{nodeIP + "/32"},
		SyncPeriod:        metav1.Duration{Duration: time.Hour},
		MinSyncPeriod:     metav1.Duration{Duration: time.Second},
	}
	c.IPTables.MasqueradeBit, c.IPTables.LocalhostNodePorts, c.NFTables.MasqueradeBit = &bit, &no, &bit
	return c
}

// noNode is a source of the Node object that has none.
type noNode struct{}

// Node returns nil.
func (noNode) Node() *v1.Node { return nil }

func (k *kubeProxy) load(w *world) error {
	for _, s := range w.services {
		k.OnServiceAdd(s)
	}
	for _, s := range w.slices {
		k.OnEndpointSliceAdd(s)
	}
	k.OnServiceSynced() // It writes nothing before the EndpointSlices are synced, too.
	return k.sync()
}

func (k *kubeProxy) update(old, now *discoveryv1.EndpointSlice) error {
	k.OnEndpointSliceUpdate(old, now)
	return k.sync()
}

func (k *kubeProxy) add(s *v1.Service, slice *discoveryv1.EndpointSlice) error {
	k.OnServiceAdd(s)
	k.OnEndpointSliceAdd(slice)
	return k.sync()
}

// sync syncs like kube-proxy does after its pause.
func (k *kubeProxy) sync() error {
	before := k.health.Health().LastUpdated
	k.OnEndpointSlicesSynced()
	if !k.health.Health().LastUpdated.After(before) {
		return errKubeSync
	}
	return nil
}
