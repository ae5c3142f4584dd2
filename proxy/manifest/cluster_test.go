package manifest

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// objectsOf reads a file of testdata without problems.
func objectsOf(t *testing.T, path string) map[key]metav1.Object {
	t.Helper()
	f, _ := follow(t, path)
	untilStable(t, f)
	if err := f.problems(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	objects := make(map[key]metav1.Object)
	for _, o := range f.merge() {
		objects[o.key] = o.value
	}
	return objects
}

func get[T metav1.Object](t *testing.T, objects map[key]metav1.Object, k kind, namespace, name string) T {
	t.Helper()
	o, ok := objects[key{k, types.NamespacedName{Namespace: namespace, Name: name}}].(T)
	if !ok {
		t.Fatalf("%v %s/%s is missing", k, namespace, name)
	}
	return o
}

// The output of kubectl in both formats has the same objects.
func TestClusterFormats(t *testing.T) {
	fromYAML := objectsOf(t, "testdata/cluster.yaml")
	fromJSON := objectsOf(t, "testdata/cluster.json")
	if diff := cmp.Diff(fromYAML, fromJSON); diff != "" {
		t.Errorf("-YAML +JSON:\n%s", diff)
	}
	if got, want := len(fromYAML), 9; got != want {
		t.Errorf("got %d objects, want %d", got, want)
	}
}

// The defaults are these and no others.
func TestDefaults(t *testing.T) {
	slice := "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1}\nendpoints: [{addresses: [10.1.0.1]}]\nports: [{port: 80}, {port: 53, protocol: UDP, name: dns}]\n"
	dir := t.TempDir()
	managed := strings.Replace(service("web", 80), "metadata:\n", "metadata:\n  managedFields: [{manager: kubectl}]\n", 1)
	write(t, dir, "a.yaml", managed+"---\n"+slice)
	objects := objectsOf(t, dir)
	wantService := &v1.Service{Spec: v1.ServiceSpec{Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}}}
	wantService.APIVersion, wantService.Kind, wantService.Name, wantService.Namespace = "v1", "Service", "web", "default"
	testenv.Same(t, wantService, get[*v1.Service](t, objects, serviceKind, "default", "web"), "Service")
	wantSlice := &discoveryv1.EndpointSlice{
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
		Ports: []discoveryv1.EndpointPort{
			{Name: new(""), Port: new(int32(80)), Protocol: new(v1.ProtocolTCP)},
			{Name: new("dns"), Port: new(int32(53)), Protocol: new(v1.ProtocolUDP)},
		},
	}
	wantSlice.APIVersion, wantSlice.Kind, wantSlice.Name, wantSlice.Namespace = "discovery.k8s.io/v1", "EndpointSlice", "web-1", "default"
	testenv.Same(t, wantSlice, get[*discoveryv1.EndpointSlice](t, objects, sliceKind, "default", "web-1"), "EndpointSlice")
}

// The same text in the encodings and line ends of editors and shells of all systems.
func TestEncodings(t *testing.T) {
	plain := "# Größe\n" + service("web", 80) + "---\n" + service("api", 81)
	want := []string{"Service default/api", "Service default/web"}
	for name, text := range map[string]string{
		"plain":        plain,
		"CRLF":         strings.ReplaceAll(plain, "\n", "\r\n"),
		"BOM":          "\ufeff" + plain,
		"BOM and CRLF": "\ufeff" + strings.ReplaceAll(plain, "\n", "\r\n"),
		"no last line": strings.TrimSuffix(plain, "\n"),
	} {
		t.Run(name, func(t *testing.T) {
			r, err := loadText(t, text)
			if err != nil {
				t.Errorf("Load: %v", err)
			}
			testenv.Same(t, want, r.names(), "objects")
		})
	}
	for _, text := range []string{"\xff\xfea\x00", "\xfe\xff\x00a", "\xff"} {
		if _, err := loadText(t, text); !errors.Is(err, errEncoding) {
			t.Errorf("%q: got error %v, want %v", text, err, errEncoding)
		}
	}
	if _, err := loadText(t, "\x00\x01"); err == nil {
		t.Error("control characters: got no error, want one")
	}
}

// A file that kubectl wrote under Windows.
func TestClusterCRLF(t *testing.T) {
	data, err := os.ReadFile("testdata/cluster.yaml")
	testenv.NoError(t, err)
	dir := t.TempDir()
	write(t, dir, "cluster.yaml", strings.ReplaceAll(string(data), "\n", "\r\n"))
	if diff := cmp.Diff(objectsOf(t, "testdata/cluster.yaml"), objectsOf(t, dir)); diff != "" {
		t.Errorf("-LF +CRLF:\n%s", diff)
	}
}
