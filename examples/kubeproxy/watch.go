package main

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// connect gives a client of the API server. It does not connect yet.
func (c *clientConfig) connect() (kubernetes.Interface, error) {
	config, err := rest.InClusterConfig()
	if c.kubeconfig != "" || c.master != "" {
		config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: api.Cluster{Server: c.master}},
		).ClientConfig()
	}
	if err != nil {
		return nil, err
	}
	config.UserAgent = "vipkit-kubeproxy"
	config.QPS, config.Burst = float32(c.qps), c.burst
	return kubewatch.NewClient(config)
}

// audience are all who want to know what is watched.
type audience struct {
	proxy.ServiceChangeTracker
	health  *health.Server
	foreign *foreign
}

func (a audience) UpdateNode(n *v1.Node) {
	a.health.UpdateNode(n)
	a.ServiceChangeTracker.UpdateNode(n)
}

// UpdateServiceCIDRs has the flows in a range that is new looked at, by who has
// addresses in it now.
func (a audience) UpdateServiceCIDRs(ranges []netip.Prefix) {
	a.foreign.list()
	a.ServiceChangeTracker.UpdateServiceCIDRs(ranges)
}

func (a audience) Synced() {
	a.foreign.list()
	a.ServiceChangeTracker.Synced()
}

// foreign knows the addresses of Services that name another proxy. Flows to them
// may be found when the program starts, and must be left alone.
type foreign struct {
	ctx    context.Context // a handler is called without one
	client kubernetes.Interface
	log    logr.Logger

	mu    sync.Mutex
	known map[netip.Addr]struct{} // nil if they could not be had
}

func (f *foreign) list() {
	ctx, cancel := context.WithTimeout(f.ctx, 5*time.Second)
	defer cancel()
	list, err := f.client.CoreV1().Services("").List(ctx, metav1.ListOptions{LabelSelector: "service.kubernetes.io/service-proxy-name"})
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known = nil; err != nil {
		f.log.Error(err, "flows to addresses without a Service are left alone, since they may be another proxy's")
		return
	}
	f.known = map[netip.Addr]struct{}{}
	for i := range list.Items {
		spec := &list.Items[i].Spec
		for _, text := range append(spec.ClusterIPs, spec.ClusterIP) {
			if a, err := netip.ParseAddr(text); err == nil {
				f.known[a.Unmap()] = struct{}{}
			}
		}
	}
}

// has is what conntrack.Options ask for.
func (f *foreign) has(a netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, isKnown := f.known[a]
	return isKnown || f.known == nil
}
