package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// kustomization is as much of one as there is in deploy.
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
	text, err := os.ReadFile(filepath.Join("deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// deployed are the objects that kustomize makes its own from.
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
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	strictly(deployFile(t, "kustomization.yaml"), &d.kustomization)
	into := map[string]any{"ServiceAccount": &d.account, "ClusterRole": &d.role, "ClusterRoleBinding": &d.binding, "DaemonSet": &d.daemons}
	for _, name := range d.Resources {
		for text := range strings.SplitSeq(deployFile(t, name), "\n---\n") {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(text), &kind); err != nil || into[kind.Kind] == nil {
				t.Fatalf("%s: kind %s, error %v; wanted one of %d others", name, kind.Kind, err, len(into))
			}
			strictly(text, into[kind.Kind])
			delete(into, kind.Kind)
		}
	}
	if len(into) > 0 {
		t.Errorf("there is nothing of %v", into)
	}
	return d
}

func TestDeployedNames(t *testing.T) {
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
			t.Errorf("%s is %q, wanted %q", what, pair[0], pair[1])
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(d.daemons.Spec.Selector)
	if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("the selector %v (error %v) does not match the pods' labels %v", selector, err, pod.Labels)
	}
	if !pod.Spec.HostNetwork || pod.Spec.PriorityClassName != "system-node-critical" || pod.Spec.Tolerations[0].Operator != v1.TolerationOpExists {
		t.Errorf("pods of %+v do not run on all nodes, first of all", pod.Spec)
	}
	if got := pod.Spec.Containers[0].SecurityContext.Capabilities; !slices.Equal(got.Drop, []v1.Capability{"ALL"}) || !slices.Equal(got.Add, []v1.Capability{"NET_ADMIN"}) {
		t.Errorf("capabilities %+v, wanted NET_ADMIN alone", got)
	}
}

// TestDeployedFiles: what the pods are told to read is there, and can be read.
func TestDeployedFiles(t *testing.T) {
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
				t.Errorf("%s: there is no volume %s", container.Name, m.Name)
			}
			if m.Name == "config" {
				mounted = m.MountPath + "/"
			}
		}
		checkDeployedConfig(t, d, container.Args, mounted)
	}
}

// TestDeployedProbes: the pods are asked where they answer. A node that is about to go is
// not ready, and is not restarted for it.
func TestDeployedProbes(t *testing.T) {
	container := readDeployed(t).daemons.Spec.Template.Spec.Containers[0]
	for path, probe := range map[string]*v1.Probe{"/livez": container.LivenessProbe, "/healthz": container.ReadinessProbe} {
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path {
			t.Errorf("probe %+v, wanted one of %s", probe, path)
			continue
		}
		at := slices.IndexFunc(container.Ports, func(p v1.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.StrVal })
		if at < 0 || container.Ports[at].ContainerPort != 10256 {
			t.Errorf("%s is asked at port %v, wanted that of 10256", path, probe.HTTPGet.Port.StrVal)
		}
	}
}

// checkDeployedConfig checks the arguments of a container, in which the ConfigMap is
// mounted at a path.
func checkDeployedConfig(t *testing.T, d *deployed, args []string, mounted string) {
	t.Helper()
	var local []string
	for _, arg := range args {
		local = append(local, strings.ReplaceAll(arg, mounted, "deploy/"))
	}
	var out strings.Builder
	c, err := readCommandLine(local, &out)
	if err != nil || len(c.notes) > 0 {
		t.Fatalf("%q: error %v, wanted no notes\n%s", args, err, out.String())
	}
	kubeconfig := strings.TrimPrefix(c.ClientConnection.Kubeconfig, mounted)
	if files := d.ConfigMapGenerator[0].Files; !slices.Contains(files, kubeconfig) || !slices.Contains(files, strings.TrimPrefix(c.configFile, "deploy/")) {
		t.Errorf("%q: the ConfigMap has %q, wanted %s and %s", args, files, kubeconfig, c.configFile)
	}
	loaded, err := clientcmd.Load([]byte(deployFile(t, kubeconfig)))
	if err != nil || loaded.Contexts[loaded.CurrentContext] == nil {
		t.Errorf("%s: error %v, wanted a current context", kubeconfig, err)
	}
	if _, err := c.tracker(nftablesMode); err != nil {
		t.Error(err)
	}
	if healthz, metrics, err := c.addresses(); err != nil || healthz != "0.0.0.0:10256" || metrics != "127.0.0.1:10249" {
		t.Errorf("healthz is at %s and the metrics at %s, error %v, wanted kube-proxy's addresses", healthz, metrics, err)
	}
}

// TestDeployedRights: what is watched may be watched, and nothing else.
func TestDeployedRights(t *testing.T) {
	want := []string{"/nodes", "/services", "discovery.k8s.io/endpointslices", "networking.k8s.io/servicecidrs"}
	var got []string
	for _, rule := range readDeployed(t).role.Rules {
		if !slices.Equal(rule.Verbs, []string{"list", "watch"}) {
			t.Errorf("verbs %q for %q, wanted list and watch", rule.Verbs, rule.Resources)
		}
		for _, resource := range rule.Resources {
			got = append(got, rule.APIGroups[0]+"/"+resource)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("rights for %q, wanted %q", got, want)
	}
}
