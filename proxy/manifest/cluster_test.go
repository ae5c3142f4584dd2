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
	"k8s.io/apimachinery/pkg/util/intstr"

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

func TestClusterService(t *testing.T) {
	objects := objectsOf(t, "testdata/cluster.yaml")
	web := get[*v1.Service](t, objects, serviceKind, "shop", "web")
	want := v1.ServiceSpec{
		Type:                          v1.ServiceTypeLoadBalancer,
		ClusterIP:                     "10.96.143.7",
		ClusterIPs:                    []string{"10.96.143.7", "fd00:96::8f07"},
		IPFamilies:                    []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol},
		IPFamilyPolicy:                new(v1.IPFamilyPolicyPreferDualStack),
		ExternalIPs:                   []string{"192.0.2.15"},
		ExternalTrafficPolicy:         v1.ServiceExternalTrafficPolicyLocal,
		InternalTrafficPolicy:         new(v1.ServiceInternalTrafficPolicyCluster),
		HealthCheckNodePort:           31942,
		AllocateLoadBalancerNodePorts: new(true),
		LoadBalancerSourceRanges:      []string{"198.51.100.0/24"},
		Selector:                      map[string]string{"app": "web"},
		SessionAffinity:               v1.ServiceAffinityClientIP,
		SessionAffinityConfig:         &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: new(int32(600))}},
		TrafficDistribution:           new("PreferClose"),
		Ports: []v1.ServicePort{
			{Name: "http", Protocol: v1.ProtocolTCP, Port: 80, NodePort: 30080, TargetPort: intstr.FromString("http")},
		},
	}
	testenv.Same(t, want, web.Spec, "spec")
	ingress := []v1.LoadBalancerIngress{
		{IP: "203.0.113.20", IPMode: new(v1.LoadBalancerIPModeVIP), Ports: []v1.PortStatus{{Port: 80, Protocol: v1.ProtocolTCP}}},
		{IP: "203.0.113.21", IPMode: new(v1.LoadBalancerIPModeProxy)},
		{Hostname: "web.example.com"},
	}
	testenv.Same(t, ingress, web.Status.LoadBalancer.Ingress, "ingress")
	dns := get[*v1.Service](t, objects, serviceKind, "kube-system", "kube-dns")
	if len(dns.ManagedFields) != 0 {
		t.Errorf("got managedFields %v, want none", dns.ManagedFields)
	}
	if got := dns.Spec.Ports[0].Protocol; got != v1.ProtocolUDP {
		t.Errorf("protocol of kube-dns: got %q, want UDP", got)
	}
}

func TestClusterEndpointSlice(t *testing.T) {
	objects := objectsOf(t, "testdata/cluster.yaml")
	want := []discoveryv1.Endpoint{
		{
			Addresses:  []string{"10.244.1.12"},
			Conditions: conditions(true, true, false),
			Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "eu-1a"}}},
			NodeName:   new("worker-1"),
			TargetRef:  pod("web-7d4f9c6b5d-2xk8p", "6d4e6b8e-3c36-46ad-a1d6-0f4a1c1b7f10"),
			Zone:       new("eu-1a"),
		},
		{
			Addresses:  []string{"10.244.2.31"},
			Conditions: conditions(false, true, true),
			NodeName:   new("worker-2"),
			TargetRef:  pod("web-7d4f9c6b5d-9qzvt", "0b1f1c54-7a3d-4b8f-8f1e-92f0d46a2c02"),
			Zone:       new("eu-1b"),
		},
	}
	web := get[*discoveryv1.EndpointSlice](t, objects, sliceKind, "shop", "web-6fx2d")
	testenv.Same(t, want, web.Endpoints, "endpoints")
	// Missing conditions have no default.
	kubernetes := get[*discoveryv1.EndpointSlice](t, objects, sliceKind, "default", "kubernetes")
	testenv.Same(t, discoveryv1.EndpointConditions{Ready: new(true)}, kubernetes.Endpoints[0].Conditions, "conditions")
}

func TestClusterNode(t *testing.T) {
	node := get[*v1.Node](t, objectsOf(t, "testdata/cluster.yaml"), nodeKind, "", "worker-1")
	want := []v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: "172.18.0.3"},
		{Type: v1.NodeInternalIP, Address: "fc00:f853:ccd:e793::3"},
		{Type: v1.NodeHostName, Address: "worker-1"},
	}
	testenv.Same(t, want, node.Status.Addresses, "addresses")
	testenv.Same(t, []string{"10.244.1.0/24", "fd00:10:244:1::/64"}, node.Spec.PodCIDRs, "podCIDRs")
	if got, want := node.Labels[v1.LabelTopologyZone], "eu-1a"; got != want {
		t.Errorf("got zone %q, want %q", got, want)
	}
}

// The defaults are these and no others.
func TestDefaults(t *testing.T) {
	slice := "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1}\nendpoints: [{addresses: [10.1.0.1]}]\nports: [{port: 80}, {port: 53, protocol: UDP, name: dns}]\n"
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("web", 80)+"---\n"+slice)
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
