package kubewatch_test

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/vipkit/vipkit/proxy/kubewatch"
)

// fakeClient returns a client with some objects in the place of an API server.
func fakeClient(objects ...runtime.Object) kubernetes.Interface {
	return kubewatch.FakeClient(objects...)
}
