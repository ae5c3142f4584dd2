package main

import (
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// apiClient is a client of the API server, with its metrics.
type apiClient struct {
	kubernetes.Interface
	metrics *clientMetrics
}

// connect returns a client of the API server. It does not connect yet.
func (c *config) connect() (*apiClient, error) {
	metrics := newClientMetrics() // first, as the client reports how it is made
	config, err := rest.InClusterConfig()
	if c.ClientConnection.Kubeconfig != "" || c.master != "" {
		config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.ClientConnection.Kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: api.Cluster{Server: c.master}},
		).ClientConfig()
	}
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, fmt.Errorf("outside of a pod, set clientConnection.kubeconfig or -kubeconfig: %w", err)
	}
	if err != nil {
		return nil, err
	}
	config.UserAgent = "vipkit-kubeproxy"
	config.QPS, config.Burst = float32(c.ClientConnection.QPS), c.ClientConnection.Burst
	client, err := kubewatch.NewClient(config)
	return &apiClient{client, metrics}, err
}
