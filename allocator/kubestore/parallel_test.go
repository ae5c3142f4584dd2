package kubestore_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/allocator/storetest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// slow is an API server that replies only when group requests are in flight.
type slow struct {
	mu    sync.Mutex
	here  int
	group int
	all   chan struct{} // closed when group requests are in flight
}

func (s *slow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	all := s.all
	if s.here++; s.here == s.group {
		s.here, s.all = 0, make(chan struct{})
		close(all)
	}
	s.mu.Unlock()
	select {
	case <-all:
	case <-time.After(time.Minute):
		http.Error(w, "alone", http.StatusTeapot)
		return
	}
	var o networkingv1.IPAddress
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.ResourceVersion = "7"
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&o) // The client returns the error.
}

// TestSeveralRequestsAtOnce checks that a commit of many keys sends several requests at once.
func TestSeveralRequestsAtOnce(t *testing.T) {
	t.Parallel()
	const atOnce = 8
	server := httptest.NewServer(&slow{group: atOnce, all: make(chan struct{})})
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	testenv.NoError(t, err)
	s := kubestore.New(client.NetworkingV1(), kubestore.Options{})
	var ops []allocator.Op
	for i := range 3 * atOnce {
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: storetest.Key(i), Owner: "me", Token: 1}})
	}
	versions, err := s.Commit(t.Context(), ops)
	if err != nil || len(versions) != len(ops) {
		t.Errorf("got %d versions, error %v, want %d", len(versions), err, len(ops))
	}
}

// TestAllOrNothing fails one of many changes of several kinds. Afterwards the objects must
// be the same as before.
func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	rnd := testenv.Random(t)
	for round := range 30 {
		a, s := newStore(t)
		var held []allocator.Op
		for i := range 60 {
			held = append(held, allocator.Op{Claim: allocator.Claim{Key: storetest.Key(i), Owner: "old", Token: 1, Expires: time.Now().UTC()}})
		}
		versions, err := s.Commit(t.Context(), held[:40])
		testenv.NoError(t, err)
		before := describe(a.addresses())
		ops := make([]allocator.Op, len(held))
		for i := range ops {
			ops[i] = held[i]
			if i >= len(versions) {
				continue
			}
			ops[i].Claim.Version = versions[i]
			switch i % 3 {
			case 0:
				ops[i].Claim.Expires = time.Time{}
			case 1:
				ops[i].Claim.Owner = "new"
			default:
				ops[i].Delete = true
			}
		}
		ops[rnd.IntN(len(ops))].Claim.Version = 1
		if _, err := s.Commit(t.Context(), ops); !errors.Is(err, allocator.ErrConflict) {
			t.Errorf("round %d: got error %v, want %v", round, err, allocator.ErrConflict)
		}
		if diff := cmp.Diff(before, describe(a.addresses())); diff != "" {
			t.Fatalf("round %d: objects after a failure (-want +got):\n%s", round, diff)
		}
	}
}
