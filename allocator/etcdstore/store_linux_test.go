package etcdstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/etcdstore"
	"github.com/vipkit/vipkit/allocator/rangemap"
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

func newStore(t testing.TB, client *clientv3.Client, ranges ...allocator.Config) *etcdstore.Store {
	t.Helper()
	s, err := etcdstore.New(client, prefix, ranges...)
	testenv.NoError(t, err)
	return s
}

// withMaps makes a store whose maps are empty.
func withMaps(t testing.TB, client *clientv3.Client) *etcdstore.Store {
	t.Helper()
	if _, err := client.Delete(context.Background(), prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, client, ranges()...)
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
	storetest.Run(t, func(t *testing.T) allocator.Store { return withMaps(t, client) })
}

// TestStore shares one etcd among tests that each begin with empty maps, or none.
func TestStore(t *testing.T) {
	client := connect(t, servertest.StartEtcd(t).URL)
	for name, test := range map[string]func(*testing.T, *clientv3.Client){
		"no map":          testNoMap,
		"bad maps":        testBadMaps,
		"layout":          testLayout,
		"import":          testImport,
		"imported ends":   testImportedEnds,
		"create":          testCreate,
		"parts":           testParts,
		"combining":       testCombining,
		"invalid":         testInvalid,
		"watch compacted": testCompacted,
		"half compacted":  testHalfCompacted,
		"by hand":         testMapWrittenByHand,
		"copied":          testCopied,
		"unreadable":      testUnreadable,
		"bit alone":       testBitAloneIsTaken,
		"pages":           testPagesOfOneRevision,
		"always conflict": testAlwaysConflict,
		"many at once":    testManyPortsAtOnce,
		"new range":       testNewRange,
		"large maps":      testLargeMaps,
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := client.Delete(t.Context(), prefix, clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
			test(t, client)
		})
	}
}

func testNoMap(t *testing.T, client *clientv3.Client) {
	s := newStore(t, client, allocator.Config{Prefix: netip.MustParsePrefix("10.96.0.0/16")})
	_, err := newPool(t, s).Reserve(t.Context(), "me", allocator.Request{Kind: allocator.IPv4})
	want := "no address or port can be allocated: reading the store: there is no allocation map at /test/maps/10.96.0.0/16 in etcd, " +
		"so no key of 10.96.0.0/16 can be allocated"
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

func testBadMaps(t *testing.T, client *clientv3.Client) {
	c := allocator.Config{Prefix: netip.MustParsePrefix("10.96.0.0/29")}
	for name, object := range map[string]struct {
		text string
		want error
	}{
		"no map":       {"hello", rangemap.ErrMalformed},
		"other range":  {string(rangemap.Map{Range: "10.97.0.0/29"}.Marshal()), allocator.ErrInvalid},
		"a bit beyond": {string(rangemap.Map{Range: "10.96.0.0/29", Data: []byte{0x40}}.Marshal()), rangemap.ErrOutOfRange},
		"much beyond":  {string(rangemap.Map{Range: "10.96.0.0/29", Data: []byte{1, 0}}.Marshal()), rangemap.ErrOutOfRange},
	} {
		if _, err := client.Put(t.Context(), "/test/maps/10.96.0.0/29", object.text); err != nil {
			t.Fatal(err)
		}
		s := newStore(t, client, c)
		if _, err := s.Load(t.Context()); !errors.Is(err, object.want) {
			t.Errorf("%s: got error %v, want %v", name, err, object.want)
		}
	}
}

// stored returns the keys whose bits are set in a map in etcd.
func stored(t testing.TB, client *clientv3.Client, name string) []string {
	t.Helper()
	answer, err := client.Get(t.Context(), "/test/maps/"+name)
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("reading the map: %v, error %v", answer, err)
	}
	m, err1 := rangemap.Unmarshal(answer.Kvs[0].Value)
	keys, err2 := m.Keys()
	testenv.NoError(t, errors.Join(err1, err2))
	var all []string
	for _, k := range keys {
		all = append(all, k.String())
	}
	return all
}

// testLayout compares the maps and claims in etcd.
func testLayout(t *testing.T, client *clientv3.Client) {
	s := withMaps(t, client)
	since := time.Date(2024, 2, 29, 12, 0, 0, 5, time.UTC)
	ops := []allocator.Op{
		{Claim: allocator.Claim{Key: storetest.Key(10), Owner: "services/default/web", Token: 7, Since: since, Expires: since.Add(time.Minute)}},
		{Claim: allocator.Claim{Key: allocator.PortKey(30080), Owner: "services/default/web", Token: 8, Since: since}},
	}
	versions := mustCommit(t, s, ops)
	testenv.Same(t, []string{"10.96.0.10"}, stored(t, client, "10.96.0.0/16"), "addresses")
	testenv.Same(t, []string{"30080"}, stored(t, client, "30000-32767"), "ports")
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
	if got := append(stored(t, client, "10.96.0.0/16"), stored(t, client, "30000-32767")...); len(got) != 0 {
		t.Errorf("keys of the maps after the release: got %v, want none", got)
	}
}

// testCombining counts the transactions of many callers.
func testCombining(t *testing.T, client *clientv3.Client) {
	const callers, rounds = 64, 20
	s := withMaps(t, client)
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
	testenv.Same(t, callers*rounds+2, len(stored(t, client, "10.96.0.0/16")), "taken keys")
}

func testInvalid(t *testing.T, client *clientv3.Client) {
	s := withMaps(t, client)
	beyond := put(1, 0)
	beyond[0].Claim.Key = allocator.PortKey(80)
	if _, err := s.Commit(t.Context(), beyond); !errors.Is(err, allocator.ErrNotInRange) {
		t.Errorf("beyond the range: got error %v, want %v", err, allocator.ErrNotInRange)
	}
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
	for name, c := range map[string][]allocator.Config{
		"too many":      slices.Collect(singlePorts(9)),
		"no range":      nil,
		"too large":     {{Prefix: netip.MustParsePrefix("10.0.0.0/8")}},
		"overlap":       {{Prefix: netip.MustParsePrefix("10.96.0.0/16")}, {Prefix: netip.MustParsePrefix("10.96.1.0/24")}},
		"other overlap": {{FirstPort: 30000, LastPort: 30010}, {FirstPort: 29000, LastPort: 30000}},
	} {
		if _, err := etcdstore.New(client, prefix, c...); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

// singlePorts returns ranges of one port each.
func singlePorts(n uint16) iter.Seq[allocator.Config] {
	return func(yield func(allocator.Config) bool) {
		for p := range n {
			if !yield(allocator.Config{FirstPort: 30000 + p, LastPort: 30000 + p}) {
				return
			}
		}
	}
}

func testCompacted(t *testing.T, client *clientv3.Client) {
	s := withMaps(t, client)
	now := mustCommit(t, s, put(1, 0))[0]
	if _, err := client.Compact(t.Context(), int64(now)); err != nil {
		t.Fatal(err)
	}
	storetest.WantEnd(t, s.Watch(t.Context(), now-2), allocator.ErrCompacted)
}
