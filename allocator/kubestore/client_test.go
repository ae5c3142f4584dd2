package kubestore_test

import (
	"context"
	"reflect"
	"testing"

	"go.uber.org/goleak"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	networkingclient "k8s.io/client-go/kubernetes/typed/networking/v1"
	clienttesting "k8s.io/client-go/testing"
)

// contextClient is a client that, like real ones, sends no request after its context has
// ended.
type contextClient struct {
	networkingclient.NetworkingV1Interface
	api *api
}

func (h contextClient) IPAddresses() networkingclient.IPAddressInterface {
	return contextAddresses{h.NetworkingV1Interface.IPAddresses(), h.api}
}

type contextAddresses struct {
	networkingclient.IPAddressInterface
	api *api
}

// guarded sends a request about an object unless its context has ended meanwhile.
func guarded[T any](ctx context.Context, a *api, name string, send func() (T, error)) (result T, err error) {
	a.wait(name)
	if err := ctx.Err(); err != nil {
		return result, err
	}
	return send()
}

func (h contextAddresses) Create(ctx context.Context, o *networkingv1.IPAddress, options metav1.CreateOptions) (*networkingv1.IPAddress, error) {
	return guarded(ctx, h.api, o.Name, func() (*networkingv1.IPAddress, error) { return h.IPAddressInterface.Create(ctx, o, options) })
}

func (h contextAddresses) Update(ctx context.Context, o *networkingv1.IPAddress, options metav1.UpdateOptions) (*networkingv1.IPAddress, error) {
	return guarded(ctx, h.api, o.Name, func() (*networkingv1.IPAddress, error) { return h.IPAddressInterface.Update(ctx, o, options) })
}

func (h contextAddresses) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	_, err := guarded(ctx, h.api, name, func() (struct{}, error) { return struct{}{}, h.IPAddressInterface.Delete(ctx, name, options) })
	return err
}

func (h contextAddresses) Get(ctx context.Context, name string, options metav1.GetOptions) (*networkingv1.IPAddress, error) {
	return guarded(ctx, h.api, name, func() (*networkingv1.IPAddress, error) { return h.IPAddressInterface.Get(ctx, name, options) })
}

func (h contextAddresses) List(ctx context.Context, options metav1.ListOptions) (*networkingv1.IPAddressList, error) {
	return guarded(ctx, h.api, "", func() (*networkingv1.IPAddressList, error) { return h.IPAddressInterface.List(ctx, options) })
}

func (h contextAddresses) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return guarded(ctx, h.api, "", func() (watch.Interface, error) { return h.IPAddressInterface.Watch(ctx, options) })
}

// isSameParent reports whether two IPAddresses have one parentRef, which API servers do
// not let change.
func isSameParent(a, b object) bool {
	x, isX := a.(*networkingv1.IPAddress)
	y, isY := b.(*networkingv1.IPAddress)
	return !isX || !isY || reflect.DeepEqual(x.Spec.ParentRef, y.Spec.ParentRef)
}

// openWatches returns the number of open watches.
func (a *api) openWatches() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.watches {
		w.mu.Lock()
		if !w.ended {
			n++
		}
		w.mu.Unlock()
	}
	return n
}

// nameOf returns the name of the object that a request is about, if it is about one.
func nameOf(action clienttesting.Action) string {
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		return asObject(action.GetObject()).GetName()
	case clienttesting.UpdateActionImpl:
		return asObject(action.GetObject()).GetName()
	case clienttesting.DeleteActionImpl:
		return action.Name
	case clienttesting.GetActionImpl:
		return action.Name
	}
	return ""
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
