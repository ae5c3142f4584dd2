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

var errNotMended = errors.New("what is not (mended) is left: the store cannot mend it, but its owners can")

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
	var keys []allocator.Key
	for _, c := range claims {
		keys = append(keys, c.Key)
	}
	return errors.Join(err, a.printKeys(keys))
}

// try says what allocate would give now.
func (a *app) try(ctx context.Context, args []string) error {
	requests, err := a.requests(args[1:])
	if err != nil {
		return err
	}
	keys, err := a.pool.DryRun(ctx, allocator.Owner(args[0]), requests...)
	return errors.Join(err, a.printKeys(keys))
}

func (a *app) printKeys(keys []allocator.Key) error {
	for _, k := range keys {
		if err := a.printf("%v\n", k); err != nil {
			return err
		}
	}
	return nil
}

// requests reads what to allocate.
func (a *app) requests(words []string) ([]allocator.Request, error) {
	if len(words) == 0 {
		return []allocator.Request{{Kind: kindOf(a.ranges[0])}}, nil
	}
	var all []allocator.Request
	for _, word := range words {
		r, err := request(word)
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func kindOf(c allocator.Config) allocator.Kind {
	switch {
	case !c.Prefix.IsValid():
		return allocator.Port
	case c.Prefix.Addr().Is4():
		return allocator.IPv4
	}
	return allocator.IPv6
}

func request(word string) (allocator.Request, error) {
	name, times, isMany := strings.Cut(word, "*")
	for _, kind := range []allocator.Kind{allocator.IPv4, allocator.IPv6, allocator.Port} {
		if !strings.EqualFold(name, kind.String()) {
			continue
		}
		count := 1
		if isMany {
			var err error
			if count, err = strconv.Atoi(times); err != nil || count < 1 {
				return allocator.Request{}, fmt.Errorf("%s: %q is not a number of keys, from 1", word, times)
			}
		}
		return allocator.Request{Kind: kind, Count: count}, nil
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

// create makes an empty map. A store that needs none has nothing to do.
func (a *app) create(ctx context.Context, _ []string) error {
	creator, canCreate := a.store.(repair.Creator)
	if !canCreate {
		return nil
	}
	return creator.Create(ctx)
}

// repair mends the store by a file of lines with a key and its owner. By force, it
// believes a file that would free most of what there is.
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
