package kubewatch

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// FakeClient returns a client with some objects. Its lists have a resource version, as those of an API
// server have, which fake clients of Kubernetes 1.35 leave out.
func FakeClient(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewClientset(objects...)
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a, ok := action.(clienttesting.ListActionImpl)
		if !ok {
			return false, nil, nil
		}
		list, err := client.Tracker().List(a.GetResource(), a.GetKind(), a.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		l, err := meta.ListAccessor(list)
		if err == nil && l.GetResourceVersion() == "" {
			l.SetResourceVersion("1")
		}
		return true, list, err
	})
	return client
}
