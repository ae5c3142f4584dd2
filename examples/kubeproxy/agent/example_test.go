package agent_test

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/examples/kubeproxy/agent"
)

// A distribution of Kubernetes runs the agent inside of its own program: it makes the configuration, has a client, and
// serves its pages beside the pages of other parts.
func Example() {
	serve := func(ctx context.Context, apiServer *rest.Config, mux *http.ServeMux) error {
		a, err := agent.New(agent.Options{
			Configuration: &v1alpha1.KubeProxyConfiguration{Mode: "nftables", ClusterCIDR: "10.42.0.0/16"},
			RESTConfig:    apiServer,
			NodeName:      "server-1",
			Hooks:         agent.Hooks{NoListen: true},
		})
		if err != nil {
			return err
		}
		mux.Handle("/proxy/", http.StripPrefix("/proxy", a.Healthz())) // /proxy/healthz and /proxy/livez
		mux.Handle("/metrics", a.Pages())
		return a.Run(ctx)
	}
	_ = serve
}

// The error of New has a line for each wrong value.
func ExampleNew() {
	_, err := agent.New(agent.Options{Configuration: &v1alpha1.KubeProxyConfiguration{
		BindAddress: "node-1", MetricsBindAddress: "localhost:10249", NodePortAddresses: []string{"10.0.0.0/8"},
		Winkernel: v1alpha1.KubeProxyWinkernelConfiguration{NetworkName: "pods"}, // without effect on Linux
	}, NodeName: "node-1"})
	fmt.Println(err)
	// Output:
	// metricsBindAddress: "localhost:10249": must be an IP address and a port from 1 to 65535, such as 127.0.0.1:10249 or [::1]:10249
	// bindAddress: "node-1": must be an IP address
}
