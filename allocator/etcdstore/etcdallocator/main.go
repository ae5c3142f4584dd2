// Command etcdallocator hands out addresses and node ports that are kept in etcd, and shows
// who has them. It is what examples/allocator of the library is for other stores; here it
// needs etcd's client.
//
//	etcdallocator -range 10.96.0.0/16,30000-32767 COMMAND ...
//
//	create                    make the maps that there are not yet
//	import FILE               make a map of a RangeAllocation object, as etcd or kubectl
//	                          give it, where there is none yet
//	allocate OWNER WHAT...    give keys to an owner: an address or port by name, or one of
//	                          a kind: ipv4, ipv6, port. All that is asked for, or nothing
//	release OWNER KEY...      free what an owner has
//	show                      how full the ranges are, and who has what
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/rangemap"
)

// requestTime is how long a command may take.
const requestTime = 30 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "etcdallocator:", err)
		os.Exit(1)
	}
}

// app is what the commands work on.
type app struct {
	out   io.Writer
	store *etcdstore.Store
	pool  *allocator.Pool
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	f := flag.NewFlagSet("etcdallocator", flag.ContinueOnError)
	endpoints := f.String("endpoints", "http://127.0.0.1:2379", "`URLs` of etcd, by commas")
	prefix := f.String("prefix", "/vipkit/allocator", "`path` in etcd below which everything is")
	text := f.String("range", "", "`ranges` to hand out, by commas, such as 10.96.0.0/16,fd00::/112,30000-32767")
	if err := f.Parse(args); err != nil {
		return err
	}
	ranges, err := parseRanges(*text)
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(*endpoints, ","), Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("connecting to etcd: %w", err)
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	a := &app{out: out}
	if a.store, err = etcdstore.New(client, *prefix, ranges...); err != nil {
		return err
	}
	if a.pool, err = allocator.NewPool(a.store, allocator.PoolOptions{Ranges: ranges}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	return a.do(ctx, f.Args())
}

func parseRanges(text string) ([]allocator.Config, error) {
	var ranges []allocator.Config
	for item := range strings.SplitSeq(text, ",") {
		c, err := allocator.ParseConfig(item)
		if err != nil {
			return nil, fmt.Errorf("-range: %w", err)
		}
		if c.Prefix.Addr().Is6() {
			c.Limit = rangemap.Limit
		}
		ranges = append(ranges, c)
	}
	return ranges, nil
}

func (a *app) do(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return errors.New("no command")
	}
	name, args := command[0], command[1:]
	switch {
	case name == "create" && len(args) == 0:
		return a.store.Create(ctx)
	case name == "import" && len(args) == 1:
		return a.importMap(ctx, args[0])
	case name == "allocate" && len(args) > 1:
		return a.allocate(ctx, allocator.Owner(args[0]), args[1:])
	case name == "release" && len(args) > 1:
		return a.release(ctx, allocator.Owner(args[0]), args[1:])
	case name == "show" && len(args) == 0:
		return a.show(ctx)
	}
	return fmt.Errorf("no such command, or not the arguments that it takes: %s", strings.Join(command, " "))
}

func (a *app) importMap(ctx context.Context, path string) error {
	object, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	m, err := rangemap.Unmarshal(object)
	if err != nil {
		return err
	}
	return a.store.Import(ctx, m)
}

func (a *app) allocate(ctx context.Context, owner allocator.Owner, words []string) error {
	var requests []allocator.Request
	for _, word := range words {
		q, err := request(word)
		if err != nil {
			return err
		}
		requests = append(requests, q)
	}
	claims, err := a.pool.Allocate(ctx, owner, requests...)
	for _, c := range claims {
		_, writeErr := fmt.Fprintln(a.out, c.Key)
		err = errors.Join(err, writeErr)
	}
	return err
}

func request(word string) (allocator.Request, error) {
	for _, kind := range []allocator.Kind{allocator.IPv4, allocator.IPv6, allocator.Port} {
		if strings.EqualFold(word, kind.String()) {
			return allocator.Request{Kind: kind}, nil
		}
	}
	key, err := allocator.ParseKey(word)
	return allocator.Request{Key: key}, err
}

func (a *app) release(ctx context.Context, owner allocator.Owner, words []string) error {
	var claims []allocator.Claim
	for _, word := range words {
		key, err := allocator.ParseKey(word)
		if err != nil {
			return err
		}
		claims = append(claims, allocator.Claim{Key: key, Owner: owner})
	}
	return a.pool.Release(ctx, claims...)
}

func (a *app) show(ctx context.Context) error {
	if err := a.pool.Sync(ctx); err != nil {
		return err
	}
	var b strings.Builder
	for _, r := range a.pool.Ranges() {
		fmt.Fprintf(&b, "%v: %d keys, %d taken, %d free\n", r.Config, r.Stats.Size, r.Stats.Used, r.Stats.Free())
	}
	for _, c := range a.pool.Claims() {
		state := "bound"
		if !c.IsBound() {
			state = "reserved until " + c.Expires.Format(time.RFC3339)
		}
		fmt.Fprintf(&b, "%-20v %s, %s\n", c.Key, escaped(c.Owner), state)
	}
	_, err := io.WriteString(a.out, b.String())
	return err
}

// escaped is the name of an owner without what could be a command to a terminal.
func escaped(owner allocator.Owner) string {
	text := strconv.Quote(string(owner))
	return text[1 : len(text)-1]
}
