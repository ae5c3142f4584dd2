package main

import (
	"os"

	"github.com/vipkit/vipkit/examples/allocator/allocatorcli"
)

// etcdCommand is the command for etcd, as this program does not import etcd's client.
const etcdCommand = "go run github.com/vipkit/vipkit/allocator/etcdstore/etcdallocator@latest -store etcd:URL ..."

func main() {
	p := allocatorcli.Program{Name: "allocator", Kinds: []allocatorcli.Kind{
		allocatorcli.Memory(), allocatorcli.File(), kubernetes(), {Name: "etcd", Elsewhere: etcdCommand},
	}}
	os.Exit(p.Main())
}
