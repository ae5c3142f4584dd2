package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// deployNamespace is the namespace in kustomization.yaml.
const deployNamespace = "kube-system"

// deploy creates the objects in examples/kubeproxy/deploy, and gives a token of their
// ServiceAccount, which has only their permissions.
func (c *cluster) deploy() (token string) {
	c.t.Helper()
	eventually(c.t, "the namespace "+deployNamespace+" exists", func() error {
		_, err := c.client.CoreV1().Namespaces().Get(c.t.Context(), deployNamespace, metav1.GetOptions{})
		return err
	})
	account := ""
	for _, name := range []string{"rbac.yaml", "daemonset.yaml"} {
		text, err := os.ReadFile(filepath.Join("../../../examples/kubeproxy/deploy", name))
		if err != nil {
			c.t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
			if err != nil {
				c.t.Fatalf("%s: %v", name, err)
			}
			if err := c.create(object); err != nil {
				c.t.Fatalf("%s: %v", name, err)
			}
			if a, ok := object.(*v1.ServiceAccount); ok {
				account = a.Name
			}
		}
	}
	answer, err := c.client.CoreV1().ServiceAccounts(deployNamespace).CreateToken(c.t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return answer.Status.Token
}

func (c *cluster) create(object runtime.Object) (err error) {
	ctx, options := c.t.Context(), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	switch o := object.(type) {
	case *v1.ServiceAccount:
		_, err = c.client.CoreV1().ServiceAccounts(deployNamespace).Create(ctx, o, options)
	case *rbacv1.ClusterRole:
		_, err = c.client.RbacV1().ClusterRoles().Create(ctx, o, options)
	case *rbacv1.ClusterRoleBinding:
		_, err = c.client.RbacV1().ClusterRoleBindings().Create(ctx, o, options)
	case *appsv1.DaemonSet:
		_, err = c.client.AppsV1().DaemonSets(deployNamespace).Create(ctx, o, options)
	default:
		err = fmt.Errorf("unknown object to deploy: %T", object)
	}
	return err
}
