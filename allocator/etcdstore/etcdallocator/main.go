// Command etcdallocator is examples/allocator for etcd: it hands out addresses and node
// ports of some ranges, and shows who has them. It is in the module that has etcd's client.
//
//	etcdallocator -range 10.96.0.0/16,30000-32767 -store etcd:http://127.0.0.1:2379 COMMAND ...
//
// The ranges are prefixes and rows of ports, by commas. The store is etcd, named by one or
// more URLs and commas between them; below -prefix is everything that belongs to it. Just
// as well it is a file or the memory of the program:
//
//	etcd:URL,..., file:PATH, memory
//
// Without -store it is etcd on this machine. Of an IPv6 range the first 65,536 addresses
// are handed out, which is what its map in etcd covers.
//
// # Commands
//
//	allocate OWNER [WHAT...]   give keys to an owner: an address or port by name, or
//	                           any of a kind: ipv4, ipv6, port, several as port*3.
//	                           All that is asked for, or nothing. By default one of the
//	                           first range
//	try OWNER [WHAT...]        the same, but change nothing
//	release OWNER KEY...       free what an owner has
//	show                       ranges, bands and occupancy as a picture, and the owners
//	create                     make the maps that there are not yet, empty ones: only for
//	                           ranges that nobody uses yet
//	repair [-force] FILE       compare with a file of "KEY OWNER" lines and mend the
//	                           store; it makes a map where there is none. A file
//	                           without owners, or one by which most of what is held
//	                           would be freed, is believed with -force only
//	import FILE                take the keys of a RangeAllocation object, as etcd or
//	                           kubectl give it, for the owner "imported". Where there is
//	                           no map of its range, it becomes that; otherwise all keys are
//	                           taken that nobody has yet
//
// Without a command, commands are read from standard input, a line each. None may take
// longer than 30 seconds.
//
// The exit status is 0 if all went well, 1 if a command failed, repair has found
// something that it could not mend or the program was interrupted, and 2 for bad
// flags.
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
	"github.com/vipkit/vipkit/internal/allocatorcli"
)

const (
	// commandTime is how long a command may take: the client waits for an etcd that is not
	// there.
	commandTime = 30 * time.Second
	// localEtcd is where etcd is unless something else is said.
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

// etcd is where claims are kept.
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
		_ = client.Close() // It has not connected to anything yet.
		return allocatorcli.Opened{}, err
	}
	return allocatorcli.Opened{Store: store, Ranges: ranges, Close: client.Close}, nil
}
