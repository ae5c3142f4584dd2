package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// stores lists the values of -store.
const stores = "file:PATH, kubernetes or kubernetes:KUBECONFIG"

// open opens the store, and makes the pool.
func (a *app) open(ctx context.Context, where string) (err error) {
	a.close = func() error { return nil }
	switch name, path, _ := strings.Cut(where, ":"); {
	case name == "file" && path != "":
		err = a.openFile(path)
	case name == "kubernetes":
		err = a.openKubernetes(ctx, path)
	case name == "etcd":
		err = errors.New("etcd needs a program of your own: see the example of package allocator/etcdstore")
	default:
		err = fmt.Errorf("-store %q: want %s", where, stores)
	}
	if err != nil {
		return err
	}
	if a.pool, err = allocator.NewPool(a.store, allocator.PoolOptions{Ranges: a.ranges}); err != nil {
		return errors.Join(err, a.close())
	}
	return nil
}

func (a *app) openFile(path string) error {
	if len(a.ranges) == 0 {
		return errors.New("-range is required, before the command")
	}
	store, err := filestore.Open(path)
	if err != nil {
		return err
	}
	a.store, a.close = store, store.Close
	return nil
}

// openKubernetes opens the store of a cluster. Without ranges it uses the cluster's.
func (a *app) openKubernetes(ctx context.Context, path string) error {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return fmt.Errorf("finding the API server, by a kubeconfig file or in a cluster: %w", err)
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
	if a.ranges, err = store.Ranges(ctx); err != nil || len(a.ranges) == 0 {
		return errors.Join(errors.New("the cluster has no ServiceCIDR, or one that cannot be used: set -range"), err)
	}
	return nil
}
