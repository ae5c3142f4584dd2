package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testUnreadable checks that an unreadable claim keeps its key, and that all other keys work
// as usual.
func testUnreadable(t *testing.T, client *clientv3.Client) {
	ports := allocator.Config{FirstPort: 30000, LastPort: 30003}
	s := newStore(t, client)
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: []allocator.Config{ports}})
	testenv.NoError(t, err)
	for _, port := range []uint16{30000, 30001, 30002} {
		if _, err := p.Allocate(t.Context(), "web", allocator.Request{Key: allocator.PortKey(port)}); err != nil {
			t.Fatal(err)
		}
	}
	before, err := s.Load(t.Context())
	testenv.NoError(t, err)
	damage(t, client, map[string]string{
		"/test/claims/30000": "{", "/test/claims/30001": `{"token":"7"}`, // not JSON, and without an owner
		"/test/claims/030003": "{}", "/test/claims/notes": "our ports", // not paths of claims
	})
	claims, err := s.Load(t.Context())
	if err != nil {
		t.Fatalf("loading: %v", err)
	}
	want := map[string]string{
		"30000": "unreadable:/test/claims/30000", "30001": "unreadable:/test/claims/30001", "30002": "web",
	}
	testenv.Same(t, want, ownersOf(claims), "owners")
	testenv.Same(t, []string{"30000 " + want["30000"], "30001 " + want["30001"]}, watched(t, s, before.Version, 2), "events")
	state, err := s.Get(t.Context(), allocator.PortKey(30000))
	if err != nil || len(state.Claims) != 1 || state.Claims[0].Token == 0 || !state.Claims[0].IsBound() {
		t.Errorf("reading one: got %+v, error %v, want a bound claim with a token", state.Claims, err)
	}
	testUnreadableIsHeld(t, s, p)
}

func damage(t *testing.T, client *clientv3.Client, values map[string]string) {
	t.Helper()
	var puts []clientv3.Op
	for _, path := range slices.Sorted(maps.Keys(values)) {
		puts = append(puts, clientv3.OpPut(path, values[path]))
	}
	if _, err := client.Txn(t.Context()).Then(puts...).Commit(); err != nil {
		t.Fatal(err)
	}
}

func ownersOf(s allocator.State) map[string]string {
	owners := map[string]string{}
	for _, c := range s.Claims {
		owners[c.Key.String()] = string(c.Owner)
	}
	return owners
}

// watched returns keys and owners of the next changes after a version.
func watched(t *testing.T, s *etcdstore.Store, after allocator.Version, count int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var events []string
	for e, err := range s.Watch(ctx, after) {
		if err != nil {
			t.Fatalf("after %v: %v", events, err)
		}
		events = append(events, fmt.Sprintf("%v %s", e.Claim.Key, e.Claim.Owner))
		if len(events) == count {
			break
		}
	}
	return events
}

// testUnreadableIsHeld continues with two unreadable claims and a free port, 30003.
func testUnreadableIsHeld(t *testing.T, s *etcdstore.Store, p *allocator.Pool) {
	t.Helper()
	if err := p.Sync(t.Context()); err != nil {
		t.Fatalf("syncing: %v", err)
	}
	_, err := p.Allocate(t.Context(), "other", allocator.Request{Key: allocator.PortKey(30000)})
	if !errors.Is(err, allocator.ErrAllocated) || !strings.Contains(err.Error(), "/test/claims/30000") {
		t.Errorf("allocating it: got error %v, want %v that names the path", err, allocator.ErrAllocated)
	}
	claims, err := p.Allocate(t.Context(), "other", allocator.Request{Kind: allocator.Port})
	if err != nil || claims[0].Key != allocator.PortKey(30003) {
		t.Errorf("allocating any: got %v, error %v, want 30003, the only free port", claims, err)
	}
	// No repair frees an unreadable claim, used or not; a repair reports one that is used.
	o := repair.Options{
		Ranges: []allocator.Config{{FirstPort: 30000, LastPort: 30003}}, Force: true,
		Now: func() time.Time { return time.Now().Add(-repair.DefaultGrace / 2) },
	}
	findings, err := repair.Reconcile(t.Context(), s, func(context.Context) ([]repair.Use, error) {
		return []repair.Use{{Owner: "web", Text: "30000"}, {Owner: "web", Text: "30002"}, {Owner: "other", Text: "30003"}}, nil
	}, o)
	if err != nil || len(findings) != 1 || findings[0].String() != "wrong owner: 30000 of web, held by unreadable:/test/claims/30000" {
		t.Errorf("repair: got %v, error %v, want a wrong owner of the used one", findings, err)
	}
	// A release in the name of its owner frees it.
	err = p.Release(t.Context(), allocator.Claim{Key: allocator.PortKey(30001), Owner: etcdstore.UnreadablePrefix + "/test/claims/30001"})
	if err != nil {
		t.Errorf("releasing it: %v", err)
	}
	if _, err := p.Allocate(t.Context(), "other", allocator.Request{Key: allocator.PortKey(30001)}); err != nil {
		t.Errorf("allocating the released port: %v", err)
	}
}
