package allocatorcli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/repair"
)

// command is a subcommand.
type command struct {
	// form is the name and the arguments, as in the usage.
	form string
	// about describes the command in one line.
	about string
	// least and most are the numbers of arguments that it needs; -1 for any number.
	least, most int
	run         func(a *app, ctx context.Context, args []string) error
}

func commands() []command {
	return []command{
		{"allocate OWNER [WHAT...]", "allocate keys: addresses, ports, or any: ipv4, ipv6, port, port*3", 1, -1, (*app).allocate},
		{"try OWNER [WHAT...]", "print the keys that allocate would give, and change nothing", 1, -1, (*app).try},
		{"release OWNER KEY...", "free keys of an owner", 2, -1, (*app).release},
		{"show", "draw how full the ranges are, and list the claims", 0, 0, (*app).show},
		{"create", "make an empty map, for ranges that are not in use yet", 0, 0, (*app).create},
		{"repair [-force] FILE", "repair the store by a file of \"KEY OWNER\" lines", 1, 2, (*app).repair},
		{"import FILE", "take the keys of a RangeAllocation object", 1, 1, (*app).importMap},
	}
}

// errMisused says that the arguments of a command are wrong.
var errMisused = errors.New("wrong arguments")

// do runs one command.
func (a *app) do(ctx context.Context, words []string) error {
	var names []string
	for _, c := range commands() {
		name, _, _ := strings.Cut(c.form, " ")
		if name == words[0] {
			return a.call(ctx, c, words[1:])
		}
		names = append(names, name)
	}
	return fmt.Errorf("unknown command %q; the commands are %s", words[0], strings.Join(names, ", "))
}

// call runs the command if the number of arguments is valid, for CommandTime at most.
func (a *app) call(ctx context.Context, c command, args []string) error {
	limited := ctx
	if a.kind.CommandTime > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, a.kind.CommandTime)
		defer cancel()
	}
	err := errMisused
	if len(args) >= c.least && (c.most < 0 || len(args) <= c.most) {
		err = c.run(a, limited, args)
	}
	switch {
	case errors.Is(err, errMisused):
		return fmt.Errorf("%w; usage: %s", err, c.form)
	case err != nil && limited.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("%s did not reply within %v: %w", a.kind.Name, a.kind.CommandTime, err)
	}
	return err
}

var errNotMended = errors.New("findings without (mended) remain: change the objects of their owners")

// printf writes to standard output.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.Out, format, args...)
	return err
}

func (a *app) allocate(ctx context.Context, args []string) error {
	requests, err := a.requests(args[1:])
	if err != nil {
		return err
	}
	claims, err := a.pool.Allocate(ctx, allocator.Owner(args[0]), requests...)
	for _, c := range claims {
		err = errors.Join(err, a.printf("%v\n", c.Key))
	}
	return err
}

// try prints the keys that allocate would give now.
func (a *app) try(ctx context.Context, args []string) error {
	requests, err := a.requests(args[1:])
	if err != nil {
		return err
	}
	keys, err := a.pool.DryRun(ctx, allocator.Owner(args[0]), requests...)
	for _, k := range keys {
		err = errors.Join(err, a.printf("%v\n", k))
	}
	return err
}

// requests parses the requests of allocate and try: by default one key of the first range.
func (a *app) requests(words []string) (all []allocator.Request, err error) {
	if len(words) == 0 {
		kind := allocator.IPv6
		switch prefix := a.ranges[0].Prefix; {
		case !prefix.IsValid():
			kind = allocator.Port
		case prefix.Addr().Is4():
			kind = allocator.IPv4
		}
		return []allocator.Request{{Kind: kind}}, nil
	}
	for _, word := range words {
		r, err := request(word)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func request(word string) (allocator.Request, error) {
	name, times, isMany := strings.Cut(word, "*")
	for _, kind := range []allocator.Kind{allocator.IPv4, allocator.IPv6, allocator.Port} {
		switch count, err := strconv.Atoi(times); {
		case !strings.EqualFold(name, kind.String()):
		case !isMany:
			return allocator.Request{Kind: kind, Count: 1}, nil
		case err != nil || count < 1:
			return allocator.Request{}, fmt.Errorf("%s: %q is not a number of keys, at least 1", word, times)
		default:
			return allocator.Request{Kind: kind, Count: count}, nil
		}
	}
	key, err := allocator.ParseKey(word)
	if err != nil {
		return allocator.Request{}, fmt.Errorf("%w, nor one of the kinds ipv4, ipv6 and port", err)
	}
	return allocator.Request{Key: key}, nil
}

func (a *app) release(ctx context.Context, args []string) error {
	var claims []allocator.Claim
	for _, text := range args[1:] {
		key, err := allocator.ParseKey(text)
		if err != nil {
			return err
		}
		claims = append(claims, allocator.Claim{Key: key, Owner: allocator.Owner(args[0])})
	}
	return a.pool.Release(ctx, claims...)
}

// create makes an empty map. It does nothing for a store without maps.
func (a *app) create(ctx context.Context, _ []string) error {
	if creator, canCreate := a.store.(repair.Creator); canCreate {
		return creator.Create(ctx)
	}
	return nil
}

// repair repairs the store by a file of lines with a key and its owner. With -force it
// accepts a file that would free most keys.
func (a *app) repair(ctx context.Context, args []string) error {
	path, force := args[len(args)-1], args[0] == "-force"
	if force != (len(args) == 2) {
		return errMisused
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var uses []repair.Use
	for line := range bytes.Lines(content) {
		switch words := strings.Fields(string(line)); len(words) {
		case 0:
		case 2:
			uses = append(uses, repair.Use{Text: words[0], Owner: allocator.Owner(words[1])})
		default:
			return fmt.Errorf("%s: %q is not a key and an owner", path, bytes.TrimSpace(line))
		}
	}
	list := func(context.Context) ([]repair.Use, error) { return uses, nil }
	options := repair.Options{Ranges: a.ranges, AllowNoOwners: force}
	if force {
		options.MaxRemovals = -1
	}
	findings, err := repair.Reconcile(ctx, a.store, list, options)
	for _, f := range findings {
		err = errors.Join(err, a.printf("%v\n", f))
	}
	if slices.ContainsFunc(findings, func(f repair.Finding) bool { return !f.Mended }) {
		err = errors.Join(err, errNotMended)
	}
	return err
}
