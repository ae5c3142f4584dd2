package controlplane_test

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func newClient(t *testing.T, cp *controlplane.ControlPlane) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(cp.Config())
	testenv.NoError(t, err)
	return client
}

// TestServiceGetsClusterIP creates a Service before and after a crash of the API server.
func TestServiceGetsClusterIP(t *testing.T) {
	cp := controlplane.Start(t, controlplane.Options{ServiceRange: "10.99.0.0/24", NodePorts: "31000-31010"})
	client := newClient(t, cp)
	addresses := map[netip.Addr]bool{}
	for _, name := range []string{"before", "after"} {
		made, err := client.CoreV1().Services("default").Create(t.Context(), &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1.ServiceSpec{Type: v1.ServiceTypeNodePort, Ports: []v1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		testenv.NoError(t, err)
		address, err := netip.ParseAddr(made.Spec.ClusterIP)
		if err != nil || !netip.MustParsePrefix("10.99.0.0/24").Contains(address) || addresses[address] {
			t.Errorf("ClusterIP of Service %s: got %q, want a new one of 10.99.0.0/24", name, made.Spec.ClusterIP)
		}
		addresses[address] = true
		if port := made.Spec.Ports[0].NodePort; port < 31000 || port > 31010 {
			t.Errorf("node port of Service %s: got %d, want one of 31000-31010", name, port)
		}
		cp.Kill()
		if _, err := client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{}); err == nil {
			t.Error("Get after the API server was killed: got no error, want one")
		}
		cp.Restart()
		if _, err := client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("Get after a restart: %v", err)
		}
	}
}
