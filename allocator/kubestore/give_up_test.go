package kubestore_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/kubestore"
	"github.com/vipkit/vipkit/internal/storetest"
)

// leaving is a client whose user gives up when one object is made and another one is not.
type leaving struct {
	networkingclient.NetworkingV1Interface
	leave func()
	last  string
	made  chan struct{}
}

func (l leaving) IPAddresses() networkingclient.IPAddressInterface {
	return leavingAddresses{IPAddressInterface: l.NetworkingV1Interface.IPAddresses(), leaving: l}
}

type leavingAddresses struct {
	networkingclient.IPAddressInterface
	leaving
}

func (l leavingAddresses) Create(ctx context.Context, o *networkingv1.IPAddress, options metav1.CreateOptions) (*networkingv1.IPAddress, error) {
	if o.Name == l.last {
		<-l.made
		l.leave()
		return nil, ctx.Err()
	}
	made, err := l.IPAddressInterface.Create(ctx, o, options)
	close(l.made)
	return made, err
}

// TestUndoOfWhoGaveUp wants what was written to be undone also for a caller that does not
// wait any more.
func TestUndoOfWhoGaveUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, client := newAPI()
	first, last := storetest.Key(1), storetest.Key(2)
	s := kubestore.New(leaving{
		NetworkingV1Interface: client, leave: cancel, last: last.String(), made: make(chan struct{}),
	}, kubestore.Options{})
	_, err := s.Commit(ctx, []allocator.Op{
		{Claim: allocator.Claim{Key: first, Owner: "me", Token: 1}}, {Claim: allocator.Claim{Key: last, Owner: "me", Token: 1}},
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	if left := a.addresses(); len(left) != 0 {
		t.Errorf("%v was written and is left", left)
	}
}

// TestStopsAfterAFailure wants a commit that has failed not to go on writing.
func TestStopsAfterAFailure(t *testing.T) {
	const atOnce = 8
	a, s := newStore(t)
	var ops []allocator.Op
	for i := range 10 * atOnce {
		a.put(t, "ipaddresses", foreign(storetest.Key(i).String(), "web"))
		ops = append(ops, allocator.Op{Claim: allocator.Claim{Key: storetest.Key(i), Owner: "me", Token: 1}})
	}
	var mu sync.Mutex
	created := 0
	a.before = func(action clienttesting.Action) {
		mu.Lock()
		defer mu.Unlock()
		if action.GetVerb() == "create" {
			created++
		}
	}
	if _, err := s.Commit(t.Context(), ops); !errors.Is(err, allocator.ErrConflict) {
		t.Errorf("got error %v, want %v", err, allocator.ErrConflict)
	}
	if created < 1 || created > atOnce {
		t.Errorf("%d requests were made, want 1 to %d: each of so many at once may fail", created, atOnce)
	}
}
