package main

import (
	"os"

	"github.com/vipkit/vipkit/internal/allocatorcli"
)

// etcdCommand has the store that this command would need etcd's client for.
const etcdCommand = "go run github.com/vipkit/vipkit/allocator/etcdstore/etcdallocator@latest -store etcd:URL ..."

func main() {
	p := allocatorcli.Program{Name: "allocator", Kinds: []allocatorcli.Kind{
		allocatorcli.Memory(), allocatorcli.File(), kubernetes(), {Name: "etcd", Elsewhere: etcdCommand},
	}}
	os.Exit(p.Main())
}
