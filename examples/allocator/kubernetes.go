package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/examples/allocator/allocatorcli"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

func kubernetes() allocatorcli.Kind {
	return allocatorcli.Kind{
		Name: "kubernetes", Path: "KUBECONFIG", PathOptional: true, RangesOptional: true, Open: openKubernetes,
	}
}

// openKubernetes opens a store that keeps claims as IPAddress objects. Without ranges it uses
// those of the cluster.
func openKubernetes(ctx context.Context, path string, ranges []allocator.Config) (allocatorcli.Opened, error) {
	config, err := restConfig(path)
	if clientcmd.IsEmptyConfig(err) {
		return allocatorcli.Opened{}, errors.New("no kubeconfig found, and not running in a cluster: name a file by -store kubernetes:KUBECONFIG")
	}
	if err != nil {
		return allocatorcli.Opened{}, fmt.Errorf("finding the API server: %w", err)
	}
	config.UserAgent, config.QPS = "vipkit-allocator", -1
	client, err := kubewatch.NewClient(config)
	if err != nil {
		return allocatorcli.Opened{}, fmt.Errorf("finding the API server: %w", err)
	}
	store := kubestore.New(client.NetworkingV1(), kubestore.Options{})
	if len(ranges) > 0 {
		return allocatorcli.Opened{Store: store, Ranges: ranges}, nil
	}
	ranges, err = store.Ranges(ctx)
	if len(ranges) == 0 {
		return allocatorcli.Opened{}, errors.Join(errors.New("the cluster has no usable ServiceCIDR: set -range"), err)
	}
	return allocatorcli.Opened{Store: store, Ranges: ranges, Unusable: err}, nil
}

// restConfig reads a kubeconfig file: without a path those of kubectl, and if there are none,
// the configuration of the cluster in which the program runs.
func restConfig(path string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
}
