package kubewatch_test

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// TestExampleWithoutServiceCIDRs checks that the example's event handlers sync if the program may
// not list ServiceCIDRs, or the API server has none.
func TestExampleWithoutServiceCIDRs(t *testing.T) {
	resource := networkingv1.Resource("servicecidrs")
	for name, refusal := range map[string]error{
		"forbidden": apierrors.NewForbidden(resource, "", nil),
		"missing":   apierrors.NewNotFound(resource, ""),
	} {
		t.Run(name, func(t *testing.T) {
			client := kubewatch.FakeClient(&v1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "test", Name: "web"},
				Spec:       v1.ServiceSpec{ClusterIP: "10.96.0.20", Ports: []v1.ServicePort{{Port: 80}}},
			})
			client.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, refusal
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			factory := informers.NewSharedInformerFactory(client, 0)
			defer factory.Shutdown()
			defer cancel()
			tracker := proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: "n1"})
			events := &kubewatch.Events{Handler: tracker, NodeName: "n1"}
			synced, err := addEventHandlers(factory, events)
			testenv.NoError(t, err)
			factory.Start(ctx.Done())
			if err := events.AwaitSynced(ctx, synced...); err != nil {
				t.Fatalf("AwaitSynced: %v", err)
			}
			if snapshot, err := tracker.Next(ctx, proxy.Snapshot{}); err != nil || snapshot.Len() != 1 {
				t.Errorf("got %d Services and error %v, want one Service", snapshot.Len(), err)
			}
		})
	}
}
