package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	// deployNamespace is the namespace in kustomization.yaml.
	deployNamespace = "kube-system"
	deployFolder    = "../../../examples/kubeproxy/deploy"
)

// deploy applies examples/kubeproxy/deploy, and gives a token of its ServiceAccount, which has only
// the permissions there.
func (c *cluster) deploy() (token string) {
	c.t.Helper()
	eventually(c.t, "the namespace "+deployNamespace+" exists", func() error {
		_, err := c.client.CoreV1().Namespaces().Get(c.t.Context(), deployNamespace, metav1.GetOptions{})
		return err
	})
	account := ""
	for _, object := range render(c.t) {
		c.apply(c.t, object)
		if object.GetKind() == "ServiceAccount" {
			account = object.GetName()
		}
	}
	answer, err := c.client.CoreV1().ServiceAccounts(deployNamespace).CreateToken(c.t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	testenv.NoError(c.t, err)
	return answer.Status.Token
}

// render returns the objects of a copy of the folder deploy, as kubectl renders them, after
// replacements of texts in all files. Each text must be there.
func render(t *testing.T, replacements ...string) []*unstructured.Unstructured {
	t.Helper()
	folder := t.TempDir()
	testenv.NoError(t, os.CopyFS(folder, os.DirFS(deployFolder)))
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	testenv.NoError(t, err)
	found := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		testenv.NoError(t, err)
		for i := 0; i < len(replacements); i += 2 {
			found[replacements[i]] = found[replacements[i]] || strings.Contains(string(text), replacements[i])
		}
		testenv.NoError(t, os.WriteFile(file, []byte(strings.NewReplacer(replacements...).Replace(string(text))), 0o600))
	}
	for text, ok := range found {
		if !ok {
			t.Fatalf("files in %s: got none with %q, want one", deployFolder, text)
		}
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	testenv.NoError(t, err)
	var all []*unstructured.Unstructured
	for _, r := range resources.Resources() {
		content, err := r.Map()
		testenv.NoError(t, err)
		all = append(all, &unstructured.Unstructured{Object: content})
	}
	return all
}

// resource returns the client for objects like one.
func (c *cluster) resource(t *testing.T, object *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(c.cp.Config())
	testenv.NoError(t, err)
	plural, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	if object.GetNamespace() == "" {
		return client.Resource(plural)
	}
	return client.Resource(plural).Namespace(object.GetNamespace())
}

// apply applies an object on the server, strictly, and checks that no field is dropped or changed.
func (c *cluster) apply(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	name := object.GetKind() + " " + object.GetName()
	text, err := object.MarshalJSON()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	force := true
	stored, err := c.resource(t, object).Patch(t.Context(), object.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{
		FieldManager: "kubectl", Force: &force, FieldValidation: metav1.FieldValidationStrict,
	})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if path := missing("", object.Object, stored.Object); path != "" {
		t.Errorf("%s: the API server has another value of %s than the file", name, path)
	}
	return stored
}

// missing returns the path of a value that an object lacks or has otherwise; empty if it has all.
func missing(path string, want, got any) string {
	switch want := want.(type) {
	case map[string]any:
		in, ok := got.(map[string]any)
		if !ok {
			return path
		}
		for name, value := range want {
			if at := missing(path+"."+name, value, in[name]); at != "" {
				return at
			}
		}
		return ""
	case []any:
		in, ok := got.([]any)
		if !ok || len(in) != len(want) {
			return path
		}
		for i := range want {
			if at := missing(path+"[]", want[i], in[i]); at != "" {
				return at
			}
		}
		return ""
	case int:
		return missing(path, int64(want), got)
	}
	if !equality.Semantic.DeepEqual(want, got) {
		return path
	}
	return ""
}

// delete deletes objects, and checks that they are gone.
func (c *cluster) delete(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		if err := c.resource(t, object).Delete(t.Context(), object.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Errorf("deleting %s %s: %v", object.GetKind(), object.GetName(), err)
		}
		if _, err := c.resource(t, object).Get(t.Context(), object.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s %s after it was deleted: got error %v, want not found", object.GetKind(), object.GetName(), err)
		}
	}
}

// volume returns the files of the ConfigMap that a pod mounts.
func (c *cluster) volume(t *testing.T, pod *v1.PodSpec) map[string]string {
	t.Helper()
	m, err := c.client.CoreV1().ConfigMaps(deployNamespace).Get(t.Context(), pod.Volumes[0].ConfigMap.Name, metav1.GetOptions{})
	testenv.NoError(t, err)
	return m.Data
}
