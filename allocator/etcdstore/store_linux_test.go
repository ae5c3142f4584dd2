package etcdstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/servertest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const prefix = "/test"

// ranges returns the ranges of the keys that package storetest uses, and a range of ports.
func ranges() []allocator.Config {
	return []allocator.Config{
		{Prefix: netip.MustParsePrefix("10.96.0.0/16")},
		{Prefix: netip.MustParsePrefix("fd00::/112")},
		{FirstPort: 30000, LastPort: 32767},
	}
}

func connect(t testing.TB, url string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop(), DialTimeout: 10 * time.Second})
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, client)
	return client
}

// newStore makes an empty store.
func newStore(t testing.TB, client *clientv3.Client) *etcdstore.Store {
	t.Helper()
	if _, err := client.Delete(context.Background(), prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	s := etcdstore.New(client, prefix)
	testenv.NoError(t, s.Create(context.Background()))
	return s
}

func newPool(t testing.TB, s allocator.Store) *allocator.Pool {
	t.Helper()
	p, err := allocator.NewPool(s, allocator.PoolOptions{Ranges: ranges()})
	testenv.NoError(t, err)
	return p
}

func TestContract(t *testing.T) {
	client := connect(t, servertest.StartEtcd(t).URL)
	storetest.Run(t, func(t *testing.T) allocator.Store { return newStore(t, client) })
}

// TestStore shares one etcd among tests that each begin with nothing.
func TestStore(t *testing.T) {
	client := connect(t, servertest.StartEtcd(t).URL)
	for name, test := range map[string]func(*testing.T, *clientv3.Client){
		"not created":     testNotCreated,
		"layout":          testLayout,
		"create":          testCreate,
		"create again":    testCreateAgain,
		"parts":           testParts,
		"combining":       testCombining,
		"invalid":         testInvalid,
		"watch compacted": testCompacted,
		"unreadable":      testUnreadable,
		"pages":           testPagesOfOneRevision,
		"many at once":    testManyPortsAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := client.Delete(t.Context(), prefix, clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
			test(t, client)
		})
	}
}

func testNotCreated(t *testing.T, client *clientv3.Client) {
	s := etcdstore.New(client, prefix)
	_, err := newPool(t, s).Reserve(t.Context(), "me", allocator.Request{Kind: allocator.IPv4})
	want := "no address or port can be allocated: reading the store: there is no allocation map at /test/created in etcd, so no key can be allocated"
	if !errors.Is(err, allocator.ErrNoMap) || err.Error() != want {
		t.Errorf("got error\n%v, want\n%s", err, want)
	}
	if _, err := s.Commit(t.Context(), put(1, 0)); !errors.Is(err, allocator.ErrNoMap) {
		t.Errorf("Commit: got error %v, want %v", err, allocator.ErrNoMap)
	}
	if _, err := s.Get(t.Context(), storetest.Key(1)); !errors.Is(err, allocator.ErrNoMap) {
		t.Errorf("Get: got error %v, want %v", err, allocator.ErrNoMap)
	}
}

func put(i int, version allocator.Version) []allocator.Op {
	return []allocator.Op{{Claim: allocator.Claim{Key: storetest.Key(i), Owner: "me", Token: uint64(i) + 1, Version: version}}}
}

func mustCommit(t testing.TB, s allocator.Store, ops []allocator.Op) []allocator.Version {
	t.Helper()
	versions, err := s.Commit(context.Background(), ops)
	testenv.NoError(t, err)
	return versions
}

// stored returns the paths of all claims in etcd.
func stored(t testing.TB, client *clientv3.Client) (all []string) {
	t.Helper()
	answer, err := client.Get(t.Context(), "/test/claims/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	testenv.NoError(t, err)
	for _, kv := range answer.Kvs {
		all = append(all, string(kv.Key))
	}
	return all
}

// testLayout compares the claims in etcd.
func testLayout(t *testing.T, client *clientv3.Client) {
	s := newStore(t, client)
	since := time.Date(2024, 2, 29, 12, 0, 0, 5, time.UTC)
	ops := []allocator.Op{
		{Claim: allocator.Claim{Key: storetest.Key(10), Owner: "services/default/web", Token: 7, Since: since, Expires: since.Add(time.Minute)}},
		{Claim: allocator.Claim{Key: allocator.PortKey(30080), Owner: "services/default/web", Token: 8, Since: since}},
	}
	versions := mustCommit(t, s, ops)
	for path, want := range map[string]string{
		"10.96.0.10": `{"owner":"services/default/web","token":"7","since":"2024-02-29T12:00:00.000000005Z","expires":"2024-02-29T12:01:00.000000005Z"}`,
		"30080":      `{"owner":"services/default/web","token":"8","since":"2024-02-29T12:00:00.000000005Z"}`,
	} {
		answer, err := client.Get(t.Context(), "/test/claims/"+path)
		if err != nil || len(answer.Kvs) != 1 || string(answer.Kvs[0].Value) != want || !json.Valid(answer.Kvs[0].Value) {
			t.Errorf("claim of %s: got %v, error %v, want %s", path, answer.Kvs, err, want)
		}
	}
	for i := range ops {
		ops[i].Claim.Version, ops[i].Delete = versions[i], true
	}
	mustCommit(t, s, ops)
	if got := stored(t, client); len(got) != 0 {
		t.Errorf("claims after the release: got %v, want none", got)
	}
}

// testCombining counts the transactions of many callers.
func testCombining(t *testing.T, client *clientv3.Client) {
	const callers, rounds = 64, 20
	s := newStore(t, client)
	begin := mustCommit(t, s, put(callers*rounds+1, 0))[0]
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for round := range rounds {
				if _, err := s.Commit(t.Context(), put(1+caller*rounds+round, 0)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	end := mustCommit(t, s, put(callers*rounds+2, 0))[0]
	transactions := int(end-begin) - 1
	t.Logf("%d commits were made by %d transactions", callers*rounds, transactions)
	if transactions > callers*rounds/4 {
		t.Errorf("transactions: got %d, want at most %d", transactions, callers*rounds/4)
	}
	testenv.Same(t, callers*rounds+2, len(stored(t, client)), "taken keys")
}

func testInvalid(t *testing.T, client *clientv3.Client) {
	s := newStore(t, client)
	notUTF8 := put(1, 0)
	notUTF8[0].Claim.Owner = "\xff"
	if _, err := s.Commit(t.Context(), notUTF8); !errors.Is(err, allocator.ErrInvalid) {
		t.Errorf("an owner that is not UTF-8: got error %v, want %v", err, allocator.ErrInvalid)
	}
	tooLong := put(1, 0)
	tooLong[0].Claim.Owner = allocator.Owner(strings.Repeat("long", 1<<19))
	if _, err := s.Commit(t.Context(), tooLong); !errors.Is(err, allocator.ErrInvalid) {
		t.Errorf("an owner of 2 MiB: got error %.200v, want %v", err, allocator.ErrInvalid)
	}
}

func testCompacted(t *testing.T, client *clientv3.Client) {
	s := newStore(t, client)
	now := mustCommit(t, s, put(1, 0))[0]
	if _, err := client.Compact(t.Context(), int64(now)); err != nil {
		t.Fatal(err)
	}
	storetest.WantEnd(t, s.Watch(t.Context(), now-2), allocator.ErrCompacted)
}
