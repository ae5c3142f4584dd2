package agent

import (
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // has client-go report to kube-proxy's metrics

	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// connect returns a client of the API server. It does not connect yet.
func (c *config) connect() (kubernetes.Interface, error) {
	if c.Client != nil {
		return c.Client, nil
	}
	if c.RESTConfig != nil {
		return kubewatch.NewClient(c.RESTConfig)
	}
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
	config.QPS, config.Burst = c.ClientConnection.QPS, int(c.ClientConnection.Burst)
	return kubewatch.NewClient(config)
}
