package main

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

func (a *app) allocate(ctx context.Context, owner allocator.Owner, words []string) error {
	if len(words) == 0 {
		words = []string{"ipv4"}
	}
	var requests []allocator.Request
	for _, word := range words {
		r, err := request(word)
		if err != nil {
			return err
		}
		requests = append(requests, r)
	}
	claims, err := a.pool.Allocate(ctx, owner, requests...)
	for _, c := range claims {
		err = errors.Join(err, a.printf("%v\n", c.Key))
	}
	return err
}

// request parses what a key is requested by: itself, or a kind and a number.
func request(word string) (allocator.Request, error) {
	name, times, isMany := strings.Cut(word, "*")
	for kind := allocator.IPv4; kind <= allocator.Port; kind++ {
		if !strings.EqualFold(name, kind.String()) {
			continue
		}
		count, err := 1, error(nil)
		if isMany {
			count, err = strconv.Atoi(times)
		}
		if err != nil || count < 1 {
			return allocator.Request{}, fmt.Errorf("%s: %q is not a number of keys, at least 1", word, times)
		}
		return allocator.Request{Kind: kind, Count: count}, nil
	}
	key, err := allocator.ParseKey(word)
	if err != nil {
		return allocator.Request{}, fmt.Errorf("%w, nor one of the kinds ipv4, ipv6 and port", err)
	}
	return allocator.Request{Key: key}, nil
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

// show prints how full each range is, and the claims.
func (a *app) show(ctx context.Context) error {
	err := a.pool.Sync(ctx)
	if err != nil {
		return err
	}
	for _, r := range a.pool.Ranges() {
		s := r.Stats
		err = errors.Join(err, a.printf("%v: %d keys, %d taken, %d free; lower band: %d keys, %d taken\n",
			r.Config, s.Size, s.Used, s.Free(), s.BandSize, s.BandUsed))
	}
	for _, c := range a.pool.Claims() {
		state := "bound"
		if !c.IsBound() {
			state = "reserved until " + c.Expires.Format("15:04:05 MST")
		}
		err = errors.Join(err, a.printf("%-20v %q, %s\n", c.Key, c.Owner, state))
	}
	return err
}

// create makes an empty map. A store of objects has none.
func (a *app) create(ctx context.Context) error {
	if creator, canCreate := a.store.(repair.Creator); canCreate {
		return creator.Create(ctx)
	}
	return nil
}

// repair repairs the store by a file of lines with a key and its owner. With force it accepts
// a file that would free most keys.
func (a *app) repair(ctx context.Context, path string, force bool) error {
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
	findings, err := repair.Reconcile(ctx, a.store, list, repair.Options{Ranges: a.ranges, Force: force})
	for _, f := range findings {
		err = errors.Join(err, a.printf("%v\n", f))
	}
	if slices.ContainsFunc(findings, func(f repair.Finding) bool { return !f.Mended }) {
		err = errors.Join(err, errors.New("findings without (mended) remain: change the objects of their owners"))
	}
	return err
}

func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.out, format, args...)
	return err
}
