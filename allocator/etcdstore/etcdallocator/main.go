// Command etcdallocator is examples/allocator for etcd: it allocates addresses and node
// ports of some ranges, and shows their owners. It is in the module that has etcd's client.
//
//	etcdallocator -range 10.96.0.0/16,30000-32767 -store etcd:http://127.0.0.1:2379 COMMAND ...
//
// The ranges are prefixes and port ranges, separated by commas. The store is etcd, with
// one or more URLs separated by commas and everything below -prefix, or a file, or the
// memory of the program:
//
//	etcd:URL,..., file:PATH, memory
//
// The default of -store is etcd on this machine. Of an IPv6 range the first 65,536
// addresses are allocated, which is what its map in etcd covers.
//
// # Commands
//
//	allocate OWNER [WHAT...]   allocate keys to an owner: an address or port by name, or
//	                           any of a kind: ipv4, ipv6, port, several as port*3.
//	                           All of them, or none. By default one key of the first
//	                           range
//	try OWNER [WHAT...]        the same, but change nothing
//	release OWNER KEY...       free keys of an owner
//	show                       ranges, bands and occupancy as a picture, and the owners
//	create                     make the missing maps, empty: only for ranges that are
//	                           not in use yet
//	repair [-force] FILE       compare with a file of "KEY OWNER" lines and repair the
//	                           store; it makes missing maps. A file without owners, or
//	                           one by which most keys would be freed, needs -force
//	import FILE                take the keys of a RangeAllocation object, as etcd or
//	                           kubectl give it, for the owner "imported". If its range
//	                           has no map, the object becomes the map; otherwise import
//	                           allocates the keys that are free
//
// Without a command the program reads commands from standard input, one in each line. A
// command can take 30 seconds at most.
//
// The exit status is 0 for success, 1 if a command failed, repair found something that
// it could not repair or the program was interrupted, and 2 for bad flags.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/rangemap"
	"github.com/vipkit/vipkit/examples/allocator/allocatorcli"
)

const (
	// commandTime bounds a command: the client itself waits without limit for etcd.
	commandTime = 30 * time.Second
	// localEtcd is the default URL of etcd.
	localEtcd = "http://127.0.0.1:2379"
)

func main() { os.Exit(program().Main()) }

func program() allocatorcli.Program {
	e := &etcd{}
	return allocatorcli.Program{
		Name:  "etcdallocator",
		Kinds: []allocatorcli.Kind{e.kind(), allocatorcli.File(), allocatorcli.Memory()},
		Flags: func(f *flag.FlagSet) {
			f.StringVar(&e.prefix, "prefix", "/vipkit/allocator", "`path` in etcd below which everything is")
		},
	}
}

// etcd is the store of the claims.
type etcd struct{ prefix string }

func (e *etcd) kind() allocatorcli.Kind {
	return allocatorcli.Kind{Name: "etcd", Path: "URL,...", PathOptional: true, CommandTime: commandTime, Open: e.open}
}

func (e *etcd) open(_ context.Context, path string, ranges []allocator.Config) (allocatorcli.Opened, error) {
	if path == "" {
		path = localEtcd
	}
	ranges = slices.Clone(ranges)
	for i := range ranges {
		if ranges[i].Prefix.Addr().Is6() {
			ranges[i].Limit = rangemap.Limit
		}
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(path, ","), Logger: zap.NewNop()})
	if err != nil {
		return allocatorcli.Opened{}, fmt.Errorf("connecting to etcd: %w", err)
	}
	store, err := etcdstore.New(client, e.prefix, ranges...)
	if err != nil {
		_ = client.Close() // the client has not connected yet
		return allocatorcli.Opened{}, err
	}
	return allocatorcli.Opened{Store: store, Ranges: ranges, Close: client.Close}, nil
}
