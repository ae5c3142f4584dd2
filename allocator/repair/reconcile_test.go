package repair_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func start() time.Time { return time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC) }

func ranges(t testing.TB) []allocator.Config {
	t.Helper()
	var all []allocator.Config
	for _, text := range []string{"10.96.0.0/24", "fd00:10:96::/112", "30000-32767"} {
		c, err := allocator.ParseConfig(text)
		testenv.NoError(t, err)
		all = append(all, c)
	}
	return all
}

// claims reads lines of "key owner age [reserved]": a claim that was written that long
// before start. A reservation ends a minute after it was made.
func claims(t testing.TB, text string) []allocator.Claim {
	t.Helper()
	var all []allocator.Claim
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		key, err1 := allocator.ParseKey(words[0])
		age, err2 := time.ParseDuration(words[2])
		testenv.NoError(t, errors.Join(err1, err2))
		c := allocator.Claim{
			Key: key, Owner: allocator.Owner(words[1]), Token: 7, Since: start().Add(-age),
			Version: allocator.Version(len(all) + 1),
		}
		if len(words) > 3 {
			c.Expires = c.Since.Add(time.Minute)
		}
		all = append(all, c)
	}
	return all
}

func uses(text string) func(context.Context) ([]repair.Use, error) {
	var all []repair.Use
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) == 2 {
			all = append(all, repair.Use{Text: words[0], Owner: allocator.Owner(words[1])})
		}
	}
	return func(context.Context) ([]repair.Use, error) { return all, nil }
}

func options(t testing.TB) repair.Options {
	return repair.Options{Ranges: ranges(t), Now: start, Force: true}
}

// held returns the claims of a store, one in each line.
func held(t testing.TB, s allocator.Store) string {
	t.Helper()
	state, err := s.Load(t.Context())
	testenv.NoError(t, err)
	var lines []string
	for _, c := range state.Claims {
		line := fmt.Sprintf("%v %s", c.Key, c.Owner)
		if !c.IsBound() {
			line += " reserved"
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func lines(findings []repair.Finding) string {
	var all []string
	for _, f := range findings {
		all = append(all, f.String())
	}
	return strings.Join(all, "\n")
}

func TestReconcile(t *testing.T) {
	for _, c := range []struct{ name, claims, uses, findings, after string }{
		{name: "nothing to do", claims: "10.96.0.1 a 1h\n30000 a 1h", uses: "10.96.0.1 a\n30000 a", after: "10.96.0.1 a\n30000 a"},
		{name: "missing", uses: "10.96.0.1 a\nfd00:10:96::1 a", findings: "missing: 10.96.0.1 of a (mended)\nmissing: fd00:10:96::1 of a (mended)", after: "10.96.0.1 a\nfd00:10:96::1 a"},
		{name: "bound too late", claims: "10.96.0.1 a 30s reserved", uses: "10.96.0.1 a", findings: "missing: 10.96.0.1 of a (mended)", after: "10.96.0.1 a"},
		{name: "orphaned", claims: "10.96.0.1 a 1h", findings: "orphaned: 10.96.0.1 of a (mended)"},
		{name: "orphaned and young", claims: "10.96.0.1 a 59s", after: "10.96.0.1 a"},
		{name: "reserved", claims: "10.96.0.1 a 59s reserved", after: "10.96.0.1 a reserved"},
		{name: "reservation has ended", claims: "10.96.0.1 a 61s reserved", findings: "orphaned: 10.96.0.1 of a (mended)"},
		{name: "dated by a clock that is ahead", claims: "10.96.0.1 a -59s\n10.96.0.2 a -59s reserved", after: "10.96.0.1 a\n10.96.0.2 a reserved"},
		{
			name: "dated by a clock that was wrong", claims: "10.96.0.1 a -9000h\n10.96.0.2 a -9000h reserved",
			findings: "orphaned: 10.96.0.1 of a\norphaned: 10.96.0.2 of a", after: "10.96.0.1 a\n10.96.0.2 a reserved",
		},
		{
			name: "reserved by a clock that was wrong, and used", claims: "10.96.0.1 gone -9000h reserved", uses: "10.96.0.1 a",
			findings: "wrong owner: 10.96.0.1 of a, held by gone", after: "10.96.0.1 gone reserved",
		},
		{name: "ended reservation of another owner", claims: "10.96.0.1 b 61s reserved", uses: "10.96.0.1 a", findings: "missing: 10.96.0.1 of a (mended)", after: "10.96.0.1 a"},
		{name: "wrong owner", claims: "10.96.0.1 gone 1h", uses: "10.96.0.1 a", findings: "wrong owner: 10.96.0.1 of a, held by gone (mended)", after: "10.96.0.1 a"},
		{name: "wrong owner, young", claims: "10.96.0.1 new 5s", uses: "10.96.0.1 a", findings: "wrong owner: 10.96.0.1 of a, held by new", after: "10.96.0.1 new"},
		{name: "duplicate", claims: "10.96.0.1 b 1h", uses: "10.96.0.1 a\n10.96.0.1 b", findings: "duplicate: 10.96.0.1 of a, held by b", after: "10.96.0.1 b"},
		{
			name: "duplicate without a claim", uses: "10.96.0.1 older\n10.96.0.1 newer",
			findings: "missing: 10.96.0.1 of older (mended)\nduplicate: 10.96.0.1 of newer, held by older", after: "10.96.0.1 older",
		},
		{name: "used twice by one owner", claims: "30000 a 1h", uses: "30000 a\n30000 a", after: "30000 a"},
		{
			name: "out of range", uses: "10.97.0.1 a\n10.96.0.0 b\n10.96.0.255 c\n80 d",
			findings: "out of range: 10.96.0.0 of b\nout of range: 10.96.0.255 of c\nout of range: 10.97.0.1 of a\nout of range: 80 of d",
		},
		{name: "out of range and held", claims: "10.97.0.1 a 1h", uses: "10.97.0.1 a", findings: "out of range: 10.97.0.1 of a", after: "10.97.0.1 a"},
		{name: "out of range and unused", claims: "10.97.0.1 a 1h", findings: "out of range: 10.97.0.1 of a", after: "10.97.0.1 a"},
		{name: "out of range, and a reservation that has ended", claims: "10.97.0.1 a 61s reserved", findings: "orphaned: 10.97.0.1 of a (mended)"},
		{
			name: "not spelled canonically", claims: "fd00:10:96::ab a 1h", uses: "fd00:10:96:0::00ab a",
			findings: "non-canonical: fd00:10:96:0::00ab of a", after: "fd00:10:96::ab a",
		},
		{
			name: "not spelled canonically, by another owner", claims: "fd00:10:96::ab a 1h", uses: "fd00:10:96::ab a\nfd00:10:96:0::00ab b",
			findings: "duplicate: fd00:10:96::ab of b, held by a\nnon-canonical: fd00:10:96:0::00ab of b", after: "fd00:10:96::ab a",
		},
		{name: "hostile", uses: "\x1b[2J a\x07", findings: `invalid: \x1b[2J of a\a`},
		{name: "invalid", uses: "10.96.0.300 a\n10.96.0.1x a\n99999 a", findings: "invalid: 10.96.0.300 of a\ninvalid: 10.96.0.1x of a\ninvalid: 99999 of a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := claims(t, c.claims)
			store := allocator.NewMemory(allocator.State{Claims: before, Version: 100}, nil)
			findings, err := repair.Reconcile(t.Context(), store, uses(c.uses), options(t))
			testenv.NoError(t, err)
			testenv.Same(t, c.findings, lines(findings), "findings")
			testenv.Same(t, c.after, held(t, store), "claims after the pass")
			again, err := repair.Reconcile(t.Context(), store, uses(c.uses), options(t))
			if err != nil || strings.Contains(lines(again), "mended") {
				t.Errorf("a second pass: got %v, error %v, want nothing mended", again, err)
			}
		})
	}
}

// busy is a store in which another process changes a claim after it was read.
type busy struct {
	*allocator.Memory
	between func()
}

func (b *busy) Commit(ctx context.Context, ops []allocator.Op) ([]allocator.Version, error) {
	if f := b.between; f != nil {
		b.between = nil
		f()
	}
	return b.Memory.Commit(ctx, ops)
}

// TestClaimChangesDuringAPass checks that a pass does not change a claim that changed
// since it was read, and mends all others.
func TestClaimChangesDuringAPass(t *testing.T) {
	all := claims(t, "10.96.0.1 gone 1h\n10.96.0.2 gone 1h\n10.96.0.3 gone 1h")
	store := &busy{Memory: allocator.NewMemory(allocator.State{Claims: all, Version: 100}, nil)}
	store.between = func() {
		renewed := all[1]
		renewed.Owner = "new"
		if _, err := store.Memory.Commit(t.Context(), []allocator.Op{{Claim: renewed}}); err != nil {
			t.Error(err)
		}
	}
	findings, err := repair.Reconcile(t.Context(), store, uses(""), options(t))
	testenv.NoError(t, err)
	want := "orphaned: 10.96.0.1 of gone (mended)\norphaned: 10.96.0.2 of gone\norphaned: 10.96.0.3 of gone (mended)"
	testenv.Same(t, want, lines(findings), "findings")
	if got := held(t, store); got != "10.96.0.2 new" {
		t.Errorf("the store holds %q, want only the new claim", got)
	}
}

// TestMapOfAnotherProcess has another process make a map during a pass that found none. The
// pass must repair that map, and report what it has done.
func TestMapOfAnotherProcess(t *testing.T) {
	for name, c := range map[string]struct{ others, findings, want string }{
		"empty": {
			findings: "missing: 30000 of web (mended)",
			want:     "30000 web",
		},
		"with the claim": {
			others: "30000 web 1h",
			want:   "30000 web",
		},
		"with the claims of others": {
			others:   "30000 db 1h\n30001 old 1h\n30002 new 1s",
			findings: "wrong owner: 30000 of web, held by db (mended)\norphaned: 30001 of old (mended)",
			want:     "30000 web\n30002 new",
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := filestore.Open(filepath.Join(t.TempDir(), "map"))
			testenv.NoError(t, err)
			list := func(ctx context.Context) ([]repair.Use, error) {
				all, err := uses("30000 web")(ctx)
				return all, errors.Join(err, store.Create(ctx, claims(t, c.others)...))
			}
			findings, err := repair.Reconcile(t.Context(), store, list, options(t))
			if got := lines(findings); err != nil || got != c.findings {
				t.Errorf("findings: got %q, error %v, want %q", got, err, c.findings)
			}
			if got := held(t, store); got != c.want {
				t.Errorf("the store holds %q, want %q", got, c.want)
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMapIsLost loses the store between the creation of its map and the end of the pass. No
// claim may be reported as mended.
func TestMapIsLost(t *testing.T) {
	store := &forgetful{Store: allocator.NewMemory(allocator.State{}, nil)}
	findings, err := repair.Reconcile(t.Context(), store, uses("30000 web"), options(t))
	if !errors.Is(err, allocator.ErrNoMap) || lines(findings) != "missing: 30000 of web" {
		t.Errorf("got findings %q, error %v, want one missing claim and %v", lines(findings), err, allocator.ErrNoMap)
	}
	if len(store.created) != 1 || store.created[0].Key != allocator.PortKey(30000) {
		t.Errorf("claims that the map has from its first moment: got %v, want that of web", store.created)
	}
}

// forgetful is a store that never has a map.
type forgetful struct {
	allocator.Store
	created []allocator.Claim
}

func (*forgetful) Load(context.Context) (allocator.State, error) {
	return allocator.State{}, allocator.ErrNoMap
}

func (f *forgetful) Create(_ context.Context, claims ...allocator.Claim) error {
	f.created = claims
	return nil
}
