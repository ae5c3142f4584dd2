package peer_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/vipkit/vipkit/internal/peer/controlplane"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// writeKubeconfig writes a kubeconfig for the API server.
func writeKubeconfig(t *testing.T, cp *controlplane.ControlPlane) (path string) {
	t.Helper()
	config := cp.Config()
	path = filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(api.Config{
		Clusters:       map[string]*api.Cluster{"test": {Server: config.Host, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*api.AuthInfo{"test": {Token: config.BearerToken}},
		Contexts:       map[string]*api.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	}, path)
	testenv.NoError(t, err)
	return path
}

// TestAllocatorCommand runs the example command with a cluster and its ranges.
func TestAllocatorCommand(t *testing.T) {
	program := filepath.Join(t.TempDir(), "allocator")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/vipkit/vipkit/examples/allocator").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	cp := controlplane.Start(t, controlplane.Options{ServiceRange: "10.99.0.0/24,fd00:99::/112"})
	store := "kubernetes:" + writeKubeconfig(t, cp)
	awaitAddress(t, cp, "10.99.0.1")
	for _, c := range []struct {
		command string
		want    []string // parts of its output
		fails   bool
	}{
		{command: "allocate services/default/web 10.99.0.10 fd00:99::10", want: []string{"10.99.0.10\nfd00:99::10\n"}},
		{command: "allocate nodes/node-1 10.99.0.10", want: []string{`10.99.0.10 is already allocated to "services/default/web"`}, fails: true},
		{command: "allocate nodes/node-1 10.99.0.1", want: []string{`already allocated to "services/default/kubernetes"`}, fails: true},
		{command: "show", want: []string{"10.99.0.0/24: 254 keys, 2 taken", "fd00:99::/112: 65535 keys, 1 taken", `"services/default/web", bound`}},
		{command: "release services/default/web 10.99.0.10"},
		{command: "allocate nodes/node-1 10.99.0.10", want: []string{"10.99.0.10\n"}},
	} {
		args := append([]string{"-store", store}, strings.Fields(c.command)...)
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		if (err != nil) != c.fails {
			t.Errorf("%s: got error %v, want an error: %t\n%s", c.command, err, c.fails, out)
		}
		for _, part := range c.want {
			if !strings.Contains(string(out), part) {
				t.Errorf("%s: got\n%s, want also %q", c.command, out, part)
			}
		}
	}
}

// awaitAddress waits until the API server has an IPAddress. It is ready before it has created
// its own Service.
func awaitAddress(t *testing.T, cp *controlplane.ControlPlane, name string) {
	t.Helper()
	client, err := kubernetes.NewForConfig(cp.Config())
	testenv.NoError(t, err)
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		_, err := client.NetworkingV1().IPAddresses().Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			return
		}
		if !apierrors.IsNotFound(err) || time.Now().After(end) {
			t.Fatalf("the API server's own address %s: %v", name, err)
		}
	}
}
