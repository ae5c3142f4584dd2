package manifest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// bounded is the CPU time that an input may take at most.
const bounded = 20 * time.Second

// jsonList is the beginning of a List, with one item.
const jsonList = `{"kind": "List", "apiVersion": "v1", "items": [0`

// Texts that expand to large values are refused, at little cost.
func TestBombs(t *testing.T) {
	var nested, merged strings.Builder
	nested.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	merged.WriteString("a0: &a0 {x: 1}\n")
	for i := 1; i < 30; i++ {
		nine := strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9)
		fmt.Fprintf(&nested, "a%d: &a%d [%s]\n", i, i, nine)
		fmt.Fprintf(&merged, "a%d: &a%d {<<: [%s]}\n", i, i, nine)
	}
	for _, c := range []struct {
		name, text, want string
		most             float64 // allocations, which unlike time do not depend on other work
	}{
		{"nested aliases", nested.String(), "with aliases expanded", 3_000_000},
		{"nested merge keys", merged.String(), "with aliases expanded", 3_000_000},
		{
			"many aliases of a long text",
			"a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 300_000) + "]\n",
			"with aliases expanded", 700_000,
		},
		{
			"many aliases of a long key",
			"a: &a {? " + strings.Repeat("x", 1000) + " : 1}\nb: [" + strings.Repeat("*a,", 100_000) + "]\n",
			"with aliases expanded", 700_000,
		},
		{"deep flow", strings.Repeat("[", 100_000), "exceeded max depth", 12_000},
		{"deep block", strings.Repeat("- ", 100_000), "exceeded max depth", 12_000},
		{"deep JSON", `{"kind": ` + strings.Repeat("[", 100_000), "exceeded max depth", 12_000},
		{"one large document", "a:\n" + strings.Repeat("- 1\n", maxYAML/4), "too large for a YAML document", 400},
		{"many documents", strings.Repeat("--- 1\n", 20_000), "more, which are not listed", 1_000_000},
		{"too many items of a YAML list", "kind: List\napiVersion: v1\nitems:\n" + strings.Repeat("-\n", maxObjects+2), "more than", 12 * maxObjects},
		{"too many items of a JSON list", jsonList + strings.Repeat(",0", maxObjects) + "]}", "more than", 5 * maxObjects},
	} {
		t.Run(c.name, func(t *testing.T) {
			elapsed := testenv.ProcessorTime(t)
			var err error
			allocations := allocated(func() { _, err = loadText(t, c.text) })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load: %.200v, want %q", err, c.want)
			}
			if allocations > c.most {
				t.Errorf("got %.0f allocations, want at most %.0f", allocations, c.most)
			}
			if took := elapsed(); took > bounded {
				t.Errorf("took %v, want at most %v", took, bounded)
			}
		})
	}
}

// Of many errors the first ones are reported, and the number of the others.
func TestManyErrors(t *testing.T) {
	_, err := loadText(t, strings.Repeat("---\noops\n", 3*maxErrors))
	lines := errorLines(err)
	if got, want := len(lines), maxErrors+1; got != want {
		t.Fatalf("got %d errors, want %d", got, want)
	}
	if want := more(2 * maxErrors).Error(); !strings.Contains(err.Error(), want) {
		t.Errorf("errors without %q: %s", want, lines[0])
	}
}

// A List in JSON may be larger than a YAML document; if it is cut, the message is that of the JSON decoder.
func TestLargeJSONList(t *testing.T) {
	item := `,{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n%d", "annotations": {"a": "` + strings.Repeat("x", 1<<20) + `"}}}`
	text := `{"kind": "List", "apiVersion": "v1", "items": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}`
	count := 1
	for ; len(text) <= maxYAML; count++ {
		text += fmt.Sprintf(item, count)
	}
	r, err := loadText(t, text+"]}")
	testenv.NoError(t, err)
	if got := len(r.objects); got != count {
		t.Errorf("got %d objects, want %d", got, count)
	}
	if _, err := loadText(t, text); err == nil || !strings.HasSuffix(err.Error(), "a.yaml:1: unexpected EOF") {
		t.Errorf("cut: got error %.200v, want that of the decoder", err)
	}
}

// Refused items cost little, however many there are. The test counts allocations, which do not
// depend on other work on the machine.
func TestRefusedItemsAreCheap(t *testing.T) {
	const head = "kind: List\napiVersion: v1\nitems:\n"
	for _, c := range []struct {
		name, head, item, tail string
		most                   float64 // allocations for an item
	}{
		{"empty YAML items", head, "-\n", "", 16},
		{"YAML numbers", head, "- 1\n", "", 18},
		{"YAML objects of no kind", head, "- a: 1\n", "", 30},
		{"YAML documents", "", "--- 1\n", "", 55},
		{"JSON numbers", jsonList, ",0", "]}", 10},
		{"JSON objects of no kind", jsonList, ",{}", "]}", 9},
		{"JSON objects of no name", jsonList, `,{"kind":"Service","apiVersion":"v1"}`, "]}", 35},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The difference leaves out the first errors, which cost more, and the first parser call.
			const few, many = 2000, 6000
			cost := func(n int) float64 {
				text := []byte(c.head + strings.Repeat(c.item, n) + c.tail)
				return allocated(func() {
					found, err := readContent(t.Context(), "a.yaml", text)
					if rest, ok := errors.AsType[more](found.errs[len(found.errs)-1].Err); err != nil || !ok || int(rest) < n-maxErrors {
						t.Errorf("got %d errors with %v at last, and %v; want one for the other %d", len(found.errs), found.errs[len(found.errs)-1], err, n-maxErrors)
					}
				})
			}
			if got := (cost(many) - cost(few)) / (many - few); got <= 0 || got > c.most {
				t.Errorf("got %.1f allocations for each item, want at most %.0f", got, c.most)
			}
		})
	}
}

// allocated counts the allocations while f runs.
func allocated(f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs)
}

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
			if c, err := readContent(t.Context(), "a.yaml", []byte(text.String())); err != nil || len(c.objects) != 1 {
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
			c, err := readContent(t.Context(), "a.yaml", []byte(text))
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
