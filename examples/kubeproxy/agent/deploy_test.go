package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// kustomization has the fields that deploy/kustomization.yaml uses.
type kustomization struct {
	metav1.TypeMeta
	Namespace          string
	Resources          []string
	ConfigMapGenerator []struct {
		Name  string
		Files []string
	}
	Images []struct{ Name, NewName, NewTag string }
}

func deployFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../deploy", name))
	testenv.NoError(t, err)
	return string(text)
}

// deployed has the objects in the folder deploy.
type deployed struct {
	kustomization
	account v1.ServiceAccount
	role    rbacv1.ClusterRole
	binding rbacv1.ClusterRoleBinding
	daemons appsv1.DaemonSet
}

// readDeployed reads all files strictly: a field that does not exist is an error.
func readDeployed(t *testing.T) *deployed {
	t.Helper()
	d := &deployed{}
	strictly := func(text string, into any) {
		t.Helper()
		testenv.NoError(t, yaml.UnmarshalStrict([]byte(text), into))
	}
	strictly(deployFile(t, "kustomization.yaml"), &d.kustomization)
	into := map[string]any{"ServiceAccount": &d.account, "ClusterRole": &d.role, "ClusterRoleBinding": &d.binding, "DaemonSet": &d.daemons}
	for _, name := range d.Resources {
		for text := range strings.SplitSeq(deployFile(t, name), "\n---\n") {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(text), &kind); err != nil || into[kind.Kind] == nil {
				t.Fatalf("%s: kind: got %s, error %v; want one of the %d missing ones", name, kind.Kind, err, len(into))
			}
			strictly(text, into[kind.Kind])
			delete(into, kind.Kind)
		}
	}
	if len(into) > 0 {
		t.Errorf("missing objects: got none of %v, want one of each", into)
	}
	return d
}

func TestDeployedNames(t *testing.T) {
	t.Parallel()
	d := readDeployed(t)
	pod := d.daemons.Spec.Template
	for what, pair := range map[string][2]string{
		"account of the pods":    {pod.Spec.ServiceAccountName, d.account.Name},
		"account in the binding": {d.binding.Subjects[0].Name, d.account.Name},
		"its namespace":          {d.binding.Subjects[0].Namespace, d.Namespace},
		"role in the binding":    {d.binding.RoleRef.Name, d.role.Name},
		"ConfigMap":              {pod.Spec.Volumes[0].ConfigMap.Name, d.ConfigMapGenerator[0].Name},
		"image to set up":        {pod.Spec.InitContainers[0].Image, d.Images[0].Name},
		"image":                  {pod.Spec.Containers[0].Image, d.Images[0].Name},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %q, want %q", what, pair[0], pair[1])
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(d.daemons.Spec.Selector)
	if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("selector: got %v, error %v, want one that matches the pods' labels %v", selector, err, pod.Labels)
	}
	if !pod.Spec.HostNetwork || pod.Spec.PriorityClassName != "system-node-critical" || pod.Spec.Tolerations[0].Operator != v1.TolerationOpExists {
		t.Errorf("pod spec: got %+v, want one for all nodes in the host network, of highest priority", pod.Spec)
	}
	if got := pod.Spec.Containers[0].SecurityContext.Capabilities; !slices.Equal(got.Drop, []v1.Capability{"ALL"}) || !slices.Equal(got.Add, []v1.Capability{"NET_ADMIN", "NET_RAW"}) {
		t.Errorf("capabilities: got %+v, want NET_ADMIN and NET_RAW", got)
	}
}

// TestDeployedFiles checks that the files that the arguments of the pods name exist and are
// valid.
func TestDeployedFiles(t *testing.T) {
	t.Parallel()
	d := readDeployed(t)
	spec := d.daemons.Spec.Template.Spec
	var volumes []string
	for i := range spec.Volumes {
		volumes = append(volumes, spec.Volumes[i].Name)
	}
	for _, container := range append(spec.InitContainers, spec.Containers...) {
		mounted := ""
		for _, m := range container.VolumeMounts {
			if !slices.Contains(volumes, m.Name) {
				t.Errorf("%s: volume %s does not exist", container.Name, m.Name)
			}
			if m.Name == "config" {
				mounted = m.MountPath + "/"
			}
		}
		checkDeployedConfig(t, d, container.Args, mounted)
	}
}

// TestDeployedCleanup checks that deploy/cleanup.yaml, in the place of the agent's DaemonSet,
// runs -cleanup with all privileges on the same nodes.
func TestDeployedCleanup(t *testing.T) {
	t.Parallel()
	d := readDeployed(t)
	var cleanup appsv1.DaemonSet
	testenv.NoError(t, yaml.UnmarshalStrict([]byte(deployFile(t, "cleanup.yaml")), &cleanup))
	spec, agent := cleanup.Spec.Template.Spec, d.daemons.Spec.Template.Spec
	container := spec.InitContainers[0]
	for what, pair := range map[string][2]any{
		"kind":            {cleanup.TypeMeta, d.daemons.TypeMeta},
		"name and labels": {cleanup.ObjectMeta, d.daemons.ObjectMeta},
		"selector":        {cleanup.Spec.Selector, d.daemons.Spec.Selector},
		"labels of pods":  {cleanup.Spec.Template.Labels, d.daemons.Spec.Template.Labels},
		"host network":    {spec.HostNetwork, agent.HostNetwork},
		"priority":        {spec.PriorityClassName, agent.PriorityClassName},
		"tolerations":     {spec.Tolerations, agent.Tolerations},
		"nodes":           {spec.NodeSelector, agent.NodeSelector},
		"volumes":         {spec.Volumes, agent.Volumes},
		"mounts":          {container.VolumeMounts, agent.Containers[0].VolumeMounts},
		"images":          {[]string{container.Image, spec.Containers[0].Image}, []string{agent.Containers[0].Image, agent.Containers[0].Image}},
		"privileges":      {container.SecurityContext, agent.InitContainers[0].SecurityContext},
		"number of parts": {[]int{len(spec.InitContainers), len(spec.Containers)}, []int{1, 1}},
	} {
		if diff := cmp.Diff(pair[1], pair[0]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	if c := checkDeployedConfig(t, d, container.Args, "/etc/kubeproxy/"); !c.cleanup || !c.cleanupIPVS {
		t.Errorf("%q: got cleanup %t, of mode ipvs %t, want both", container.Args, c.cleanup, c.cleanupIPVS)
	}
}

// TestDeployedProbes checks path and port of the probes. Liveness is /livez and not /healthz,
// so that a pod is not restarted because its node is about to be removed.
func TestDeployedProbes(t *testing.T) {
	t.Parallel()
	container := readDeployed(t).daemons.Spec.Template.Spec.Containers[0]
	for path, probe := range map[string]*v1.Probe{"/livez": container.LivenessProbe, "/healthz": container.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path {
			t.Errorf("probe: got %+v, want one of %s", probe, path)
			continue
		}
		at := slices.IndexFunc(container.Ports, func(p v1.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.StrVal })
		if at < 0 || container.Ports[at].ContainerPort != 10256 {
			t.Errorf("port of %s: got %v, want 10256", path, probe.HTTPGet.Port.StrVal)
		}
	}
}

// checkDeployedConfig checks the arguments of a container, in which the ConfigMap is
// mounted at a path, and returns the configuration.
func checkDeployedConfig(t *testing.T, d *deployed, args []string, mounted string) *config {
	t.Helper()
	var local []string
	for _, arg := range args {
		local = append(local, strings.ReplaceAll(arg, mounted, "../deploy/"))
	}
	var out strings.Builder
	c, err := newConfig("linux").readCommandLine(local, &out)
	if err != nil || len(c.warnings)+len(c.notes) > 0 {
		t.Fatalf("%q: got error %v, output\n%s\nwant no error and no notes", args, err, out.String())
	}
	kubeconfig := strings.TrimPrefix(c.ClientConnection.Kubeconfig, mounted)
	if files := d.ConfigMapGenerator[0].Files; !slices.Contains(files, kubeconfig) || !slices.Contains(files, strings.TrimPrefix(c.configFile, "../deploy/")) {
		t.Errorf("%q: files of the ConfigMap: got %q, want %s and %s", args, files, kubeconfig, c.configFile)
	}
	loaded, err := clientcmd.Load([]byte(deployFile(t, kubeconfig)))
	if err != nil || loaded.Contexts[loaded.CurrentContext] == nil {
		t.Errorf("%s: got error %v, want a current context", kubeconfig, err)
	}
	if c.healthzAddress != "0.0.0.0:10256" || c.metricsAddress != "127.0.0.1:10249" {
		t.Errorf("addresses of healthz and metrics: got %s and %s, want kube-proxy's", c.healthzAddress, c.metricsAddress)
	}
	return c
}

// TestDeployedPermissions checks that the role allows to list and watch the watched resources, to create
// Events, and nothing else.
func TestDeployedPermissions(t *testing.T) {
	t.Parallel()
	want := []string{
		"/nodes list watch", "/services list watch", "discovery.k8s.io/endpointslices list watch",
		"events.k8s.io/events create", "networking.k8s.io/servicecidrs list watch",
	}
	var got []string
	for _, rule := range readDeployed(t).role.Rules {
		for _, resource := range rule.Resources {
			got = append(got, rule.APIGroups[0]+"/"+resource+" "+strings.Join(rule.Verbs, " "))
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("permissions of the role: got %q, want %q", got, want)
	}
}
