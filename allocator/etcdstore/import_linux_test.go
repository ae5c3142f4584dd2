package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/rangemap"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// importedMap returns a map whose keys have no claims.
func importedMap() rangemap.Map { return mapOfPorts(30080, 32000) }

func testImport(t *testing.T, client *clientv3.Client) {
	s, m := newStore(t, client, allocator.Config{FirstPort: 30000, LastPort: 32767}), importedMap()
	if err := s.Import(t.Context(), rangemap.Map{Range: "10.0.0.0/24"}); !errors.Is(err, allocator.ErrInvalid) {
		t.Errorf("a map of no range: got error %v, want %v", err, allocator.ErrInvalid)
	}
	testenv.NoError(t, s.Import(t.Context(), m))
	if err := s.Import(t.Context(), m); !errors.Is(err, allocator.ErrConflict) {
		t.Errorf("a second time: got error %v, want %v", err, allocator.ErrConflict)
	}
	state, err := s.Load(t.Context())
	if err != nil || len(state.Claims) != 2 || state.Claims[0].Owner != etcdstore.Imported || !state.Claims[0].IsBound() {
		t.Fatalf("got %+v, error %v, want two bound claims of %s", state.Claims, err, etcdstore.Imported)
	}
	_, err = newPool(t, s).Reserve(t.Context(), "me", allocator.Request{Key: allocator.PortKey(30080)})
	if held, ok := errors.AsType[*allocator.HeldError](err); !ok || held.Owner != etcdstore.Imported {
		t.Errorf("Reserve: got error %v, want a HeldError that names %s", err, etcdstore.Imported)
	}
}

// importedStore returns a store that has imported a map, and its state.
func importedStore(t *testing.T, client *clientv3.Client) (*etcdstore.Store, allocator.State) {
	t.Helper()
	s := newStore(t, client, allocator.Config{FirstPort: 30000, LastPort: 32767})
	testenv.NoError(t, s.Import(t.Context(), importedMap()))
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	return s, state
}

// testImportedEnds gives one imported key an owner and releases another. A watch must yield
// both changes.
func testImportedEnds(t *testing.T, client *clientv3.Client) {
	s, state := importedStore(t, client)
	named := state.Claims[0]
	named.Owner = "services/default/web"
	named.Version = mustCommit(t, s, []allocator.Op{{Claim: named}})[0]
	testenv.NoError(t, newPool(t, s).Release(t.Context(), allocator.Claim{Key: allocator.PortKey(32000), Owner: etcdstore.Imported}))
	var events []string
	for e, err := range s.Watch(t.Context(), state.Version) {
		if err != nil {
			t.Fatalf("after %v: %v", events, err)
		}
		events = append(events, fmt.Sprintf("%v %s deleted=%t", e.Claim.Key, e.Claim.Owner, e.Deleted))
		if len(events) == 2 {
			break
		}
	}
	testenv.Same(t, []string{"30080 services/default/web deleted=false", "32000  deleted=true"}, events, "events")
	testenv.Same(t, []string{"30080"}, stored(t, client, "30000-32767"), "keys of the map")
}

// testHalfCompacted releases an imported key, and compacts all revisions before that. etcd has
// the change of the map, but not the map before it, so a watch must end with ErrCompacted.
func testHalfCompacted(t *testing.T, client *clientv3.Client) {
	s, state := importedStore(t, client)
	released := mustCommit(t, s, []allocator.Op{{Claim: state.Claims[1], Delete: true}})[0]
	if _, err := client.Compact(t.Context(), int64(released)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	storetest.WantEnd(t, s.Watch(ctx, state.Version), allocator.ErrCompacted)
}

// testCreate has a repair that makes the maps from more uses than one transaction, or one
// page, can hold.
func testCreate(t *testing.T, client *clientv3.Client) {
	const inUse = 1200
	s := newStore(t, client, ranges()...)
	list := func(context.Context) ([]repair.Use, error) {
		var uses []repair.Use
		for i := range inUse {
			uses = append(uses, repair.Use{Owner: allocator.Owner(fmt.Sprintf("services/default/%d", i)), Text: storetest.Key(i + 1).String()})
		}
		return uses, nil
	}
	for pass := range 2 {
		findings, err := repair.Reconcile(t.Context(), s, list, repair.Options{Ranges: ranges()})
		if want := inUse * (1 - pass); err != nil || len(findings) != want {
			t.Errorf("pass %d: got %d findings, error %v, want %d", pass, len(findings), err, want)
		}
	}
	state, err := s.Load(t.Context())
	if err != nil || len(state.Claims) != inUse {
		t.Fatalf("got %d claims, error %v, want %d", len(state.Claims), err, inUse)
	}
	for _, c := range state.Claims {
		if !strings.HasPrefix(string(c.Owner), "services/default/") {
			t.Errorf("owner of %v: got %q, want a Service", c.Key, c.Owner)
		}
	}
	if err := s.Create(t.Context(), allocator.Claim{Key: storetest.Key(999), Owner: "late"}); err != nil {
		t.Errorf("Create with a map: %v", err)
	}
	if got := len(stored(t, client, "10.96.0.0/16")); got != inUse {
		t.Errorf("taken keys after Create with a map: got %d, want %d as before", got, inUse)
	}
	beyond := allocator.Claim{Key: allocator.PortKey(80), Owner: "me"}
	if err := s.Create(t.Context(), beyond); !errors.Is(err, allocator.ErrNotInRange) {
		t.Errorf("Create beyond the range: got error %v, want %v", err, allocator.ErrNotInRange)
	}
}

// testParts makes changes that are too large for one transaction.
func testParts(t *testing.T, client *clientv3.Client) {
	s := withMaps(t, client)
	p := newPool(t, s)
	claims, err := p.Reserve(t.Context(), "me", allocator.Request{Kind: allocator.IPv4, Count: 250})
	if err == nil {
		claims, err = p.Bind(t.Context(), claims...)
	}
	if got := len(stored(t, client, "10.96.0.0/16")); err != nil || got != 250 {
		t.Fatalf("got %d addresses, error %v, want 250", got, err)
	}
	before, err := s.Load(t.Context())
	testenv.NoError(t, err)
	// The first parts have changes of each kind, and the last part fails.
	var ops []allocator.Op
	for i, c := range claims[:200] {
		if i%2 == 0 {
			c.Owner = "you"
		}
		ops = append(ops, allocator.Op{Claim: c, Delete: i%2 == 1})
	}
	ops = append(ops, put(1, 0)...)
	ops = slices.Insert(ops, 0, put(2, 0)...)
	ops = append(ops, put(3, 77)...)
	if _, err := s.Commit(t.Context(), ops); !errors.Is(err, allocator.ErrConflict) {
		t.Errorf("got error %v, want %v", err, allocator.ErrConflict)
	}
	after, err := s.Load(t.Context())
	testenv.NoError(t, err)
	testenv.Same(t, withoutVersions(before.Claims), withoutVersions(after.Claims), "claims after a failure")
	now := map[allocator.Key]allocator.Version{}
	for _, c := range after.Claims {
		now[c.Key] = c.Version
	}
	for i := range claims {
		claims[i].Version = now[claims[i].Key]
	}
	if err := p.Release(t.Context(), claims...); err != nil || len(stored(t, client, "10.96.0.0/16")) != 0 {
		t.Errorf("Release: error %v, taken addresses: got %d, want none", err, len(stored(t, client, "10.96.0.0/16")))
	}
}

func withoutVersions(claims []allocator.Claim) []string {
	var lines []string
	for _, c := range claims {
		lines = append(lines, fmt.Sprint(c.Key, c.Owner, c.Token, c.Since, c.Expires))
	}
	slices.Sort(lines)
	return lines
}
