package repair_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

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
