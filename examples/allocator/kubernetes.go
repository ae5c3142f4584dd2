package main

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// openKubernetes keeps claims as IPAddress objects. Without ranges it takes those of the
// cluster.
func (a *app) openKubernetes(ctx context.Context) error {
	config, err := restConfig(a.path)
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	config.UserAgent, config.QPS = "vipkit-allocator", -1
	client, err := kubewatch.NewClient(config)
	if err != nil {
		return fmt.Errorf("finding the API server: %w", err)
	}
	store := kubestore.New(client.NetworkingV1(), kubestore.Options{})
	a.store = store
	if len(a.ranges) > 0 {
		return nil
	}
	a.ranges, err = store.Ranges(ctx)
	switch {
	case len(a.ranges) > 0 && err != nil:
		complain(a.err, err) // The others can be used for all that.
	case len(a.ranges) == 0:
		return errors.Join(errors.New("the cluster has no ranges: use -range"), err)
	}
	return nil
}

// restConfig reads a kubeconfig file; without a path, those that kubectl would, and
// where there is none it takes the cluster that the program runs in.
func restConfig(path string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
}
