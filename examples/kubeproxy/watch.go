package main

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/health"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// connect gives a client of the API server. It does not connect yet.
func (c *config) connect() (kubernetes.Interface, error) {
	config, err := rest.InClusterConfig()
	if c.ClientConnection.Kubeconfig != "" || c.master != "" {
		config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.ClientConnection.Kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: api.Cluster{Server: c.master}},
		).ClientConfig()
	}
	if err != nil {
		return nil, err
	}
	config.UserAgent = "vipkit-kubeproxy"
	config.QPS, config.Burst = float32(c.ClientConnection.QPS), c.ClientConnection.Burst
	return kubewatch.NewClient(config)
}

// audience are all who want to know what is watched.
type audience struct {
	proxy.ServiceChangeTracker
	health *health.Server
}

func (a audience) UpdateNode(n *v1.Node) {
	a.health.UpdateNode(n)
	a.ServiceChangeTracker.UpdateNode(n)
}
