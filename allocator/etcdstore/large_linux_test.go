package etcdstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/rangemap"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// testManyPortsAtOnce has several processes that allocate many ports, in parts, and few.
func testManyPortsAtOnce(t *testing.T, client *clientv3.Client) {
	const each = 150
	withMaps(t, client)
	var wg sync.WaitGroup
	for n := range 4 {
		p := newPool(t, newStore(t, client, ranges()...))
		owner := allocator.Owner(fmt.Sprint("services/default/", n))
		for _, count := range []int{1, each, 2, each} {
			wg.Go(func() {
				claims, err := p.Reserve(t.Context(), owner, allocator.Request{Kind: allocator.Port, Count: count})
				if err == nil {
					_, err = p.Bind(t.Context(), claims...)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	state, err := newStore(t, client, ranges()...).Load(t.Context())
	testenv.NoError(t, err)
	owned := map[allocator.Owner]int{}
	for _, c := range state.Claims {
		if c.IsBound() {
			owned[c.Owner]++
		}
	}
	want := map[allocator.Owner]int{}
	for n := range 4 {
		want[allocator.Owner(fmt.Sprint("services/default/", n))] = 2*each + 3
	}
	if diff := cmp.Diff(want, owned); diff != "" || len(state.Claims) != 4*(2*each+3) {
		t.Errorf("bound ones of %d claims, by owner (-want +got):\n%s", len(state.Claims), diff)
	}
}

// fullMap imports a map of a prefix of which all keys but the first are taken.
func fullMap(t *testing.T, s *etcdstore.Store, prefix string) {
	t.Helper()
	c, err := allocator.ParseConfig(prefix)
	testenv.NoError(t, err)
	r, err := allocator.NewRange(c)
	testenv.NoError(t, err)
	n := r.Size()
	data := bytes.Repeat([]byte{0xff}, int(n+7)/8)
	data[0] >>= (8 - n%8) % 8
	data[len(data)-1] &= 0xfe
	testenv.NoError(t, s.Import(t.Context(), rangemap.Map{Range: prefix, Data: data}))
}

// testLargeMaps changes several maps in one transaction that are as large as New accepts.
func testLargeMaps(t *testing.T, client *clientv3.Client) {
	configs := func(prefixes ...string) (all []allocator.Config) {
		for _, p := range prefixes {
			all = append(all, allocator.Config{Prefix: netip.MustParsePrefix(p)})
		}
		return all
	}
	for _, tooMany := range [][]allocator.Config{configs("10.0.0.0/8"), configs("10.0.0.0/9", "10.128.0.0/9"), configs("10.0.0.0/9", "11.0.0.0/11")} {
		if _, err := etcdstore.New(client, prefix, tooMany...); !errors.Is(err, allocator.ErrTooLarge) {
			t.Errorf("ranges %v: got error %v, want %v", tooMany, err, allocator.ErrTooLarge)
		}
	}
	newStore(t, client, append(configs("11.0.0.0/9"), ranges()...)...)
	s := newStore(t, client, configs("10.0.0.0/10", "11.0.0.0/10")...)
	fullMap(t, s, "10.0.0.0/10")
	fullMap(t, s, "11.0.0.0/10")
	var ops []allocator.Op
	for _, text := range []string{"10.0.0.1", "11.0.0.1"} {
		claim := allocator.Claim{Key: allocator.AddrKey(netip.MustParseAddr(text)), Owner: "me", Token: 1}
		ops = append(ops, allocator.Op{Claim: claim})
	}
	mustCommit(t, s, ops)
}
