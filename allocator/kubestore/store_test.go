package kubestore_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) allocator.Store {
		_, s := newStore(t)
		return s
	}, storetest.Ports)
}

func prefix() allocator.Config {
	return allocator.Config{Prefix: netip.MustParsePrefix("10.96.0.0/24")}
}

func newPool(t testing.TB, s allocator.Store, o allocator.PoolOptions) *allocator.Pool {
	t.Helper()
	if o.Ranges == nil {
		o.Ranges = []allocator.Config{prefix(), {Prefix: netip.MustParsePrefix("fd00::/112")}}
	}
	p, err := allocator.NewPool(s, o)
	testenv.NoError(t, err)
	return p
}

func key(t testing.TB, text string) allocator.Key {
	t.Helper()
	k, err := allocator.ParseKey(text)
	testenv.NoError(t, err)
	return k
}

// describe returns the owner, labels and annotations of each object in one line.
func describe(all map[string]*networkingv1.IPAddress) []string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		o := all[name]
		p := o.Spec.ParentRef
		line := fmt.Sprintf("%s of %s/%s/%s/%s", name, p.Group, p.Resource, p.Namespace, p.Name)
		for _, k := range slices.Sorted(maps.Keys(o.Labels)) {
			line += " " + strings.TrimPrefix(k, "ipaddress.kubernetes.io/") + "=" + o.Labels[k]
		}
		for _, k := range slices.Sorted(maps.Keys(o.Annotations)) {
			line += " " + strings.TrimPrefix(k, "allocator.vipkit.github.io/") + "=" + o.Annotations[k]
		}
		lines = append(lines, line)
	}
	return lines
}

// TestObjects compares the objects of reserved, bound and released keys.
func TestObjects(t *testing.T) {
	a, s := newStore(t)
	now := time.Date(2024, 2, 29, 12, 0, 0, 5, time.UTC)
	p := newPool(t, s, allocator.PoolOptions{Now: func() time.Time { return now }})
	claims, err := p.Reserve(t.Context(), "services/default/web",
		allocator.Request{Key: key(t, "10.96.0.10")}, allocator.Request{Key: key(t, "fd00:0::00ab")})
	testenv.NoError(t, err)
	rest := func(i int, expires string) string {
		return fmt.Sprintf(" managed-by=allocator.vipkit.github.io%s since=2024-02-29T12:00:00.000000005Z token=%d", expires, claims[i].Token)
	}
	expires := " expires=2024-02-29T12:01:00.000000005Z"
	want := []string{
		"10.96.0.10 of /services/default/web ip-family=IPv4" + rest(0, expires),
		"fd00::ab of /services/default/web ip-family=IPv6" + rest(1, expires),
	}
	testenv.Same(t, want, describe(a.addresses()), "reserved")
	bound, err := p.Bind(t.Context(), claims...)
	testenv.NoError(t, err)
	for i, line := range want {
		want[i] = strings.Replace(line, expires, "", 1)
	}
	testenv.Same(t, want, describe(a.addresses()), "bound")
	if err := p.Release(t.Context(), bound...); err != nil || len(a.addresses()) != 0 {
		t.Errorf("released: error %v, objects %v, want none", err, describe(a.addresses()))
	}
}

// TestRequests counts the requests of an allocation: one for each step, and one more if the
// store has not written the object itself.
func TestRequests(t *testing.T) {
	a, client := newAPI()
	p := newPool(t, kubestore.New(client, kubestore.Options{}), allocator.PoolOptions{})
	testenv.NoError(t, p.Sync(t.Context()))
	var verbs []string
	a.before = func(action clienttesting.Action) { verbs = append(verbs, action.GetVerb()) }
	claims, err := p.Reserve(t.Context(), "me", allocator.Request{Kind: allocator.IPv4})
	if err == nil {
		claims, err = p.Bind(t.Context(), claims...)
	}
	if err == nil {
		err = p.Release(t.Context(), claims...)
	}
	if err == nil {
		claims, err = p.Allocate(t.Context(), "me", allocator.Request{Kind: allocator.IPv4})
	}
	if err == nil {
		_, err = kubestore.New(client, kubestore.Options{}).Commit(t.Context(), []allocator.Op{{Claim: claims[0], Delete: true}})
	}
	testenv.NoError(t, err)
	want := []string{"create", "update", "delete", "create", "get", "delete"}
	testenv.Same(t, want, verbs, "requests")
}

func TestOwners(t *testing.T) {
	for owner, want := range map[allocator.Owner]networkingv1.ParentReference{
		"me":                            {Resource: "owners", Name: "me"},
		"nodes/node-1":                  {Resource: "nodes", Name: "node-1"},
		"services/default/web":          {Resource: "services", Namespace: "default", Name: "web"},
		"example.com/gates/default/one": {Group: "example.com", Resource: "gates", Namespace: "default", Name: "one"},
		"example.com/gates//one":        {Group: "example.com", Resource: "gates", Name: "one"},
	} {
		a, s := newStore(t)
		c := allocator.Claim{Key: key(t, "10.96.0.10"), Owner: owner, Token: 1}
		if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}}); err != nil {
			t.Fatal(err)
		}
		if got := *a.addresses()["10.96.0.10"].Spec.ParentRef; got != want {
			t.Errorf("parentRef of %q: got %+v, want %+v", owner, got, want)
		}
		state, err := s.Load(t.Context())
		if err != nil || len(state.Claims) != 1 || state.Claims[0].Owner != owner {
			t.Errorf("owner read again: got %+v, error %v, want %q", state.Claims, err, owner)
		}
	}
	for _, owner := range []allocator.Owner{"", "/", "a/", "/b", "owners/me", "a//b", "/a/b/c", "a/b/c/d/e", "100%"} {
		_, s := newStore(t)
		c := allocator.Claim{Key: key(t, "10.96.0.10"), Owner: owner, Token: 1}
		if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}}); !errors.Is(err, allocator.ErrInvalid) {
			t.Errorf("owner %q: got error %v, want %v", owner, err, allocator.ErrInvalid)
		}
	}
}

func TestPortsAreRefused(t *testing.T) {
	_, s := newStore(t)
	c := allocator.Claim{Key: allocator.PortKey(30000), Owner: "me", Token: 1}
	if _, err := s.Commit(t.Context(), []allocator.Op{{Claim: c}}); !errors.Is(err, allocator.ErrInvalid) {
		t.Errorf("Commit: got error %v, want %v", err, allocator.ErrInvalid)
	}
	if state, err := s.Get(t.Context(), c.Key); err != nil || len(state.Claims) != 0 {
		t.Errorf("Get: got %v, error %v, want nothing", state.Claims, err)
	}
}

// withForeign makes a store with an IPAddress of the API server's own allocator. It checks
// at the end of the test that the object is unchanged.
func withForeign(t *testing.T) (*kubestore.Store, allocator.Claim) {
	t.Helper()
	a, s := newStore(t)
	a.put(t, "ipaddresses", foreign("10.96.0.10", "web"))
	before := a.addresses()
	t.Cleanup(func() {
		testenv.Same(t, before, a.addresses(), "foreign object")
	})
	state, err := s.Get(t.Context(), key(t, "10.96.0.10"))
	if err != nil || len(state.Claims) != 1 {
		t.Fatalf("Get: got %v, error %v", state.Claims, err)
	}
	return s, state.Claims[0]
}

func TestForeignIsLeftAlone(t *testing.T) {
	s, c := withForeign(t)
	if c.Owner != "services/default/web" || !c.IsBound() || c.Token == 0 || c.Since.IsZero() {
		t.Errorf("got %+v, want a bound claim of services/default/web with a token and a time", c)
	}
	other := c
	other.Owner = "me"
	for what, op := range map[string]allocator.Op{
		"delete": {Claim: c, Delete: true}, "change": {Claim: c}, "take": {Claim: other},
		"create": {Claim: allocator.Claim{Key: c.Key, Owner: "me", Token: 1}},
	} {
		_, err := s.Commit(t.Context(), []allocator.Op{op})
		conflict, ok := errors.AsType[*allocator.ConflictError](err)
		if !ok || conflict.Current != c || conflict.Key != c.Key {
			t.Errorf("%s: got error %v, want a conflict with %+v", what, err, c)
		}
	}
}

// TestDamagedAnnotations checks that claims with damaged annotations are bound.
func TestDamagedAnnotations(t *testing.T) {
	a, s := newStore(t)
	o := foreign("10.96.0.10", "web")
	o.Labels[networkingv1.LabelManagedBy] = kubestore.DefaultManagedBy
	o.Annotations = map[string]string{"allocator.vipkit.github.io/expires": "soon", "allocator.vipkit.github.io/token": "?"}
	a.put(t, "ipaddresses", o)
	state, err := s.Load(t.Context())
	if err != nil || len(state.Claims) != 1 || !state.Claims[0].IsBound() || state.Claims[0].Token == 0 {
		t.Errorf("got %+v, error %v, want one bound claim with a token", state.Claims, err)
	}
}

// TestForeignTokens checks that two foreign allocations have different tokens although their
// objects have none: otherwise a late release could free a key that has a new owner.
func TestForeignTokens(t *testing.T) {
	a, s := newStore(t)
	tokens := map[uint64]string{}
	for i, name := range []string{"10.96.0.10", "10.96.0.11", "10.96.0.10"} {
		if i == 2 {
			a.removeSilently("ipaddresses", name)
		}
		a.put(t, "ipaddresses", foreign(name, "web"))
		key, err1 := allocator.ParseKey(name)
		state, err2 := s.Get(t.Context(), key)
		if err := errors.Join(err1, err2); err != nil || len(state.Claims) != 1 {
			t.Fatalf("got %v, error %v, want one claim", state.Claims, err)
		}
		if other, isKnown := tokens[state.Claims[0].Token]; isKnown {
			t.Errorf("token of allocation %d, of %s: got that of %s, want another", i, name, other)
		}
		tokens[state.Claims[0].Token] = name
	}
}

// TestPages lists many objects in pages, and again in one response if the list has become
// too old.
func TestPages(t *testing.T) {
	a, s := newStore(t)
	for i := range 25 {
		a.put(t, "ipaddresses", foreign(storetest.Key(i).String(), "web"))
	}
	a.pageSize = 10
	for _, tooLate := range []bool{false, true} {
		pages := 0
		a.lose = func(string) (bool, bool) {
			if pages++; tooLate {
				a.version++
				a.oldest = a.version
			}
			return false, false
		}
		state, err := s.Load(t.Context())
		// If the list is too old: the first page, the error for the second one, and all objects.
		const want = 3
		if err != nil || len(state.Claims) != 25 || pages != want || state.Version != allocator.Version(a.version) {
			t.Errorf("too late: %t: got %d claims in %d responses, version %d, error %v, want 25, %d and %d", tooLate, len(state.Claims), pages, state.Version, err, want, a.version)
		}
	}
}

// TestNoObjects has an API server that does not have the type IPAddress.
func TestNoObjects(t *testing.T) {
	a, s := newStore(t)
	delete(a.objects, "ipaddresses")
	_, err := newPool(t, s, allocator.PoolOptions{}).Reserve(t.Context(), "me", allocator.Request{Kind: allocator.IPv4})
	want := "no address or port can be allocated: reading the store: there is no allocation map: the API server has no IPAddress objects"
	if !errors.Is(err, allocator.ErrNoMap) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got error %q, want %q", err, want)
	}
}

func TestDraining(t *testing.T) {
	gone := metav1.Now()
	condition := func(status metav1.ConditionStatus) networkingv1.ServiceCIDRStatus {
		return networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: status}}}
	}
	for name, c := range map[string]struct {
		object networkingv1.ServiceCIDR
		want   []string
		bad    string
	}{
		"new":     {object: serviceCIDR("10.96.0.0/24"), want: []string{"10.96.0.0/24 draining=false"}},
		"ready":   {object: with(serviceCIDR("10.96.0.0/24"), condition(metav1.ConditionTrue), nil), want: []string{"10.96.0.0/24 draining=false"}},
		"unready": {object: with(serviceCIDR("10.96.0.0/24"), condition(metav1.ConditionFalse), nil), want: []string{"10.96.0.0/24 draining=true"}},
		"deleted": {object: with(serviceCIDR("10.96.0.0/24"), condition(metav1.ConditionTrue), &gone), want: []string{"10.96.0.0/24 draining=true"}},
		"two":     {object: serviceCIDR("10.96.0.0/24", "fd00::/64"), want: []string{"10.96.0.0/24 draining=false", "fd00::/64 draining=false"}},
		"two bad": {
			object: serviceCIDR("nonsense", "10.96.0.0/24", "fd00::/48"), want: []string{"10.96.0.0/24 draining=false"},
			bad: "ServiceCIDR test: netip.ParsePrefix(\"nonsense\")",
		},
		"another condition": {
			object: with(serviceCIDR("10.96.0.0/24"), networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{
				{Type: "Other", Status: metav1.ConditionFalse}, {Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue},
			}}, nil),
			want: []string{"10.96.0.0/24 draining=false"},
		},
		"too wide": {object: serviceCIDR("10.96.0.0/24", "fd00::/48"), want: []string{"10.96.0.0/24 draining=false"}, bad: "fd00::/48"},
	} {
		t.Run(name, func(t *testing.T) {
			a, s := newStore(t)
			a.put(t, "servicecidrs", &c.object)
			ranges, err := s.Ranges(t.Context())
			testenv.Same(t, c.want, describeRanges(ranges), "ranges")
			if (err == nil) != (c.bad == "") || err != nil && !strings.Contains(err.Error(), c.bad) {
				t.Errorf("got error %v, want one about %q", err, c.bad)
			}
		})
	}
}

func serviceCIDR(cidrs ...string) networkingv1.ServiceCIDR {
	return networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

func with(o networkingv1.ServiceCIDR, status networkingv1.ServiceCIDRStatus, deleted *metav1.Time) networkingv1.ServiceCIDR {
	o.Status, o.DeletionTimestamp = status, deleted
	return o
}

func describeRanges(ranges []allocator.Config) []string {
	var lines []string
	for _, c := range ranges {
		lines = append(lines, fmt.Sprintf("%v draining=%t", c, c.Draining))
	}
	return lines
}
