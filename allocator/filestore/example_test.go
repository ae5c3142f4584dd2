package filestore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
)

func Example() {
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(folder) }() // It is in the folder for temporary files.
	for _, owner := range []allocator.Owner{"default/web", "default/db"} {
		if err := allocateFrom(filepath.Join(folder, "ports"), owner); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// <nil>
	// 30080 is already allocated to "default/web"
}

func allocateFrom(path string, owner allocator.Owner) error {
	ctx := context.Background()
	store, err := filestore.Open(path)
	if err != nil {
		return err
	}
	if err := store.Create(ctx); err != nil {
		return err
	}
	pool, err := allocator.NewPool(store, allocator.PoolOptions{Ranges: []allocator.Config{{FirstPort: 30000, LastPort: 32767}}})
	if err != nil {
		return err
	}
	_, err = pool.Allocate(ctx, owner, allocator.Request{Key: allocator.PortKey(30080)})
	fmt.Println(err)
	return store.Close()
}
