package etcdstore_test

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
)

// The example makes a store and its pool, and allocates an address. No etcd runs at this URL, so
// that fails. With etcd, Create or a repair sets the store up first, once.
func Example() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Logger: zap.NewNop()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		if err := client.Close(); err != nil {
			fmt.Println(err)
		}
	}()
	services := allocator.Config{Prefix: netip.MustParsePrefix("10.96.0.0/16")}
	store := etcdstore.New(client, "/example/allocator")
	pool, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: []allocator.Config{services}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = pool.Reserve(ctx, "services/default/web", allocator.Request{Kind: allocator.IPv4})
	fmt.Println(err)
	// Output: no address or port can be allocated: reading the store: reading etcd: context deadline exceeded
}
