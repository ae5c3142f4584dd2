package manifest

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// serviceObject makes a Service with so many ports.
func serviceObject(name string, ports int) object {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}}
	for i := range ports {
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: fmt.Sprint("p", i), Protocol: v1.ProtocolTCP})
	}
	return object{key: key{kind: serviceKind, NamespacedName: types.NamespacedName{Namespace: "a", Name: name}}, value: s}
}

// sliceObject makes an EndpointSlice of a Service with so many ports.
func sliceObject(name, service string, ports int) object {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}}}
	for i := range ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Protocol: new(v1.ProtocolTCP)})
	}
	return object{key: key{kind: sliceKind, NamespacedName: types.NamespacedName{Namespace: "a", Name: name}}, value: s}
}

// TestGrowth: the time that the warnings need does not grow with the square of what a user can
// write.
func TestGrowth(t *testing.T) {
	for _, tc := range []struct {
		name     string
		from     int
		make     func(n int) []object
		warnings int // for each n
	}{
		{"ports of one slice", 1000, func(n int) []object {
			return []object{serviceObject("web", n), sliceObject("web-1", "web", n)}
		}, 0},
		{"slices and ports", 500, func(n int) []object {
			all := []object{serviceObject("web", n)}
			for i := range n {
				all = append(all, sliceObject(fmt.Sprint("web-", i), "web", 1))
			}
			return all
		}, 0},
		{"slices without Service", 500, func(n int) (all []object) {
			for i := range n {
				all = append(all, serviceObject(fmt.Sprint("service-", i), 1), sliceObject(fmt.Sprint("x", i), fmt.Sprint("orphans-", i), 1))
			}
			return all
		}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testenv.Growth(t, tc.from, func(n int) func() {
				objects := tc.make(n)
				return func() {
					if got := len(check(objects, true)); got != n*tc.warnings {
						t.Fatalf("%d objects: got %d warnings, want %d", n, got, n*tc.warnings)
					}
				}
			})
		})
	}
}

// TestGrowthOfMetadata is the same for reading an object with many labels and annotations.
func TestGrowthOfMetadata(t *testing.T) {
	testenv.Growth(t, 500, func(n int) func() {
		var text strings.Builder
		text.WriteString("apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n")
		for _, field := range []string{"labels", "annotations"} {
			text.WriteString("  " + field + ":\n")
			for i := range n {
				fmt.Fprintf(&text, "    example.com/%d: x\n", i)
			}
		}
		text.WriteString("spec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n")
		return func() {
			if c, err := readContent(t.Context(), "a.yaml", []byte(text.String()), nil); err != nil || len(c.objects) != 1 {
				t.Fatalf("%d labels: got %d objects, errors %v, error %v, want an object", n, len(c.objects), c.errs, err)
			}
		}
	})
}

// TestGrowthOfLists is the same for a List with many keys before its items, of which each has a warning with
// its line.
func TestGrowthOfLists(t *testing.T) {
	testenv.Growth(t, 2000, func(n int) func() {
		text := "apiVersion: v1\nkind: NodeList\n" + lines(n, "k%d: 1") + "items:\n" + lines(n, "- {metadata: {name: n%d}, x: 1}")
		return func() {
			c, err := readContent(t.Context(), "a.yaml", []byte(text), nil)
			if err != nil || len(c.errs) > 0 || len(c.warnings) != maxErrors+1 {
				t.Fatalf("%d items: got errors %v, %v, and %d warnings, want %d", n, err, c.errs, len(c.warnings), maxErrors+1)
			}
		}
	})
}

func lines(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format+"\n", i)
	}
	return b.String()
}
