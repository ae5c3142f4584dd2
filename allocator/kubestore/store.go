package kubestore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"

	"github.com/vipkit/vipkit/allocator"
)

// DefaultManagedBy is the default of [Options].ManagedBy.
const DefaultManagedBy = "allocator.vipkit.github.io"

// pageSize is how many objects one response lists.
const pageSize = 10_000

// Options say how a store works. The zero value of each field is its default.
type Options struct {
	// ManagedBy is the value of the label ipaddress.kubernetes.io/managed-by of the
	// store's objects, [DefaultManagedBy] by default. Objects with another value are
	// taken, and the store never changes them. All stores that share a range should
	// have the same value; otherwise they cannot free each other's claims.
	ManagedBy string
}

// Store keeps claims as IPAddress objects. Any number of goroutines may use it.
type Store struct {
	client    networkingclient.NetworkingV1Interface
	managedBy string
	recent    recent
}

var _ allocator.Store = (*Store)(nil)

// New makes a store. The client should have no rate limit (rest.Config.QPS), and should
// use protobuf.
func New(client networkingclient.NetworkingV1Interface, o Options) *Store {
	s := &Store{client: client, managedBy: o.ManagedBy}
	if s.managedBy == "" {
		s.managedBy = DefaultManagedBy
	}
	return s
}

// Load implements [allocator.Store]. If the API server does not have the type IPAddress,
// the error is [allocator.ErrNoMap].
func (s *Store) Load(ctx context.Context) (allocator.State, error) {
	if err := ctx.Err(); err != nil {
		return allocator.State{}, err
	}
	state, err := s.list(ctx, pageSize)
	if apierrors.IsResourceExpired(err) {
		// The state of the first page was compacted before the last page was read: list
		// all objects in one response.
		state, err = s.list(ctx, 0)
	}
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w: the API server has no IPAddress objects of networking.k8s.io/v1 (Kubernetes 1.33 or newer is needed): %w", allocator.ErrNoMap, err)
	}
	return state, err
}

func (s *Store) list(ctx context.Context, limit int64) (allocator.State, error) {
	var state allocator.State
	for next := ""; ; {
		page, err := s.client.IPAddresses().List(ctx, metav1.ListOptions{Limit: limit, Continue: next})
		if err != nil {
			return allocator.State{}, fmt.Errorf("listing IPAddresses: %w", err)
		}
		for i := range page.Items {
			c, err := claimOf(&page.Items[i])
			if err != nil {
				return allocator.State{}, err
			}
			state.Claims = append(state.Claims, c)
		}
		if state.Version, err = versionOf(page.ResourceVersion); err != nil {
			return allocator.State{}, fmt.Errorf("listing IPAddresses: %w", err)
		}
		if next = page.Continue; next == "" {
			return state, nil
		}
	}
}

// Get implements [allocator.Store]. Its state has no version, since each object is read
// by a request of its own.
func (s *Store) Get(ctx context.Context, keys ...allocator.Key) (allocator.State, error) {
	if err := ctx.Err(); err != nil {
		return allocator.State{}, err
	}
	claims, errs := make([]allocator.Claim, len(keys)), make([]error, len(keys))
	each(len(keys), func(i int) { _, claims[i], errs[i] = s.get(ctx, keys[i]) })
	if err := errors.Join(errs...); err != nil {
		return allocator.State{}, err
	}
	isFree := func(c allocator.Claim) bool { return c.Version == 0 }
	return allocator.State{Claims: slices.DeleteFunc(claims, isFree)}, nil
}

// get returns the object of a key and its claim; nil and the zero Claim if there is
// none.
func (s *Store) get(ctx context.Context, k allocator.Key) (*networkingv1.IPAddress, allocator.Claim, error) {
	if k.Kind() != allocator.IPv4 && k.Kind() != allocator.IPv6 {
		return nil, allocator.Claim{}, nil
	}
	o, err := s.client.IPAddresses().Get(ctx, k.String(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, allocator.Claim{}, nil
	case err != nil:
		return nil, allocator.Claim{}, fmt.Errorf("reading IPAddress %v: %w", k, err)
	}
	c, err := claimOf(o)
	return o, c, err
}
