package kubestore_test

import (
	"context"
	"reflect"

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

func (h contextClient) ServiceCIDRs() networkingclient.ServiceCIDRInterface {
	return contextRanges{h.NetworkingV1Interface.ServiceCIDRs()}
}

type contextAddresses struct {
	networkingclient.IPAddressInterface
	api *api
}

func (h contextAddresses) Create(ctx context.Context, o *networkingv1.IPAddress, options metav1.CreateOptions) (*networkingv1.IPAddress, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.api.wait(o.Name)
	return h.IPAddressInterface.Create(ctx, o, options)
}

func (h contextAddresses) Update(ctx context.Context, o *networkingv1.IPAddress, options metav1.UpdateOptions) (*networkingv1.IPAddress, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.api.wait(o.Name)
	return h.IPAddressInterface.Update(ctx, o, options)
}

func (h contextAddresses) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.api.wait(name)
	return h.IPAddressInterface.Delete(ctx, name, options)
}

func (h contextAddresses) Get(ctx context.Context, name string, options metav1.GetOptions) (*networkingv1.IPAddress, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h.api.wait(name)
	return h.IPAddressInterface.Get(ctx, name, options)
}

func (h contextAddresses) List(ctx context.Context, options metav1.ListOptions) (*networkingv1.IPAddressList, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return h.IPAddressInterface.List(ctx, options)
}

func (h contextAddresses) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return h.IPAddressInterface.Watch(ctx, options)
}

type contextRanges struct {
	networkingclient.ServiceCIDRInterface
}

func (h contextRanges) List(ctx context.Context, options metav1.ListOptions) (*networkingv1.ServiceCIDRList, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return h.ServiceCIDRInterface.List(ctx, options)
}

func (h contextRanges) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return h.ServiceCIDRInterface.Watch(ctx, options)
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
