package etcdstore_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/rangemap"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// testNewRange adds a range to a store. The repair that makes its map must repair the other
// map, too.
func testNewRange(t *testing.T, client *clientv3.Client) {
	addresses, ports := ranges()[0], ranges()[2]
	testenv.NoError(t, newStore(t, client, addresses).Create(t.Context()))
	s := newStore(t, client, addresses, ports)
	list := func(context.Context) ([]repair.Use, error) {
		return []repair.Use{{Owner: "web", Text: storetest.Key(1).String()}, {Owner: "web", Text: "30000"}}, nil
	}
	findings, err := repair.Reconcile(t.Context(), s, list, repair.Options{Ranges: ranges()})
	if err != nil || len(findings) != 2 || !findings[0].Mended || !findings[1].Mended {
		t.Errorf("got findings %v, error %v, want two that are mended", findings, err)
	}
	state, err := s.Load(t.Context())
	if err != nil || len(state.Claims) != 2 {
		t.Errorf("got claims %v, error %v, want both", state.Claims, err)
	}
}

// testImportRepaired imports a map, all of whose keys are used. A repair with the default
// options must give them to their owners.
func testImportRepaired(t *testing.T, client *clientv3.Client) {
	const inUse = 40
	s := newStore(t, client, ranges()[2])
	var keys []allocator.Key
	var all []repair.Use
	for i := range inUse {
		keys = append(keys, allocator.PortKey(uint16(30000+i)))
		all = append(all, repair.Use{Owner: allocator.Owner(fmt.Sprint("services/default/", i)), Text: keys[i].String()})
	}
	m, err := rangemap.Encode("30000-32767", slices.Values(keys))
	testenv.NoError(t, err)
	testenv.NoError(t, s.Import(t.Context(), m))
	list := func(context.Context) ([]repair.Use, error) { return all, nil }
	findings, err := repair.Reconcile(t.Context(), s, list, repair.Options{Ranges: ranges()})
	if err != nil || len(findings) != inUse {
		t.Errorf("got %d findings, error %v, want %d", len(findings), err, inUse)
	}
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	for i, c := range state.Claims {
		if c.Owner != all[i].Owner {
			t.Errorf("owner of %v: got %s, want %s", c.Key, c.Owner, all[i].Owner)
		}
	}
}
