package manifest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bounded is more time of processors than any of the inputs here may take.
const bounded = 20 * time.Second

// Small texts that stand for large ones are refused, and soon.
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
		{"nested aliases", nested.String(), "excessive aliasing", 12_000},
		{"nested merge keys", merged.String(), "excessive aliasing", 12_000},
		{
			"many aliases of a long text",
			"a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 300_000) + "]\n",
			"aliases make more than", 1_300_000,
		},
		{
			"many aliases of a long key",
			"a: &a {? " + strings.Repeat("x", 1000) + " : 1}\nb: [" + strings.Repeat("*a,", 100_000) + "]\n",
			"aliases make more than", 1_000_000,
		},
		{"deep flow", strings.Repeat("[", 100_000), "exceeded max depth", 12_000},
		{"deep block", strings.Repeat("- ", 100_000), "exceeded max depth", 12_000},
		{"deep JSON", `{"kind": ` + strings.Repeat("[", 100_000), "exceeded max depth", 12_000},
		{"one large document", "a:\n" + strings.Repeat("- 1\n", maxYAML/4), "too large for a YAML document", 400},
		{"one large item", "kind: List\napiVersion: v1\nitems:\n- a:\n" + strings.Repeat("  - 1\n", maxYAML/4), "items[0]: too large for a YAML document or list item", 400},
		{"many documents", strings.Repeat("--- 1\n", 100_000), "errors more", 5_000_000},
		{"too many items of a YAML list", "kind: List\napiVersion: v1\nitems:\n" + strings.Repeat("-\n", maxObjects+2), "more than", 400},
		{"too many items of a JSON list", "{\"items\": [0" + strings.Repeat(",0", maxObjects) + "]}", "more than", 5 * maxObjects},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := processors(t)
			var err error
			allocations := allocated(func() { _, err = loadText(t, c.text) })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load: %.200v, want %q", err, c.want)
			}
			if allocations > c.most {
				t.Errorf("%.0f allocations, want at most %.0f", allocations, c.most)
			}
			if took := processors(t) - start; took > bounded {
				t.Errorf("took %v", took)
			}
		})
	}
}

// Of many errors the first ones are told, and how many there are.
func TestManyErrors(t *testing.T) {
	_, err := loadText(t, strings.Repeat("---\noops\n", 3*maxErrors))
	lines := errorLines(err)
	if got, want := len(lines), maxErrors+1; got != want {
		t.Fatalf("%d errors, want %d", got, want)
	}
	if want := fmt.Sprintf("%d errors more", 2*maxErrors); !strings.Contains(err.Error(), want) {
		t.Errorf("errors without %q: %s", want, lines[0])
	}
}

// A List is larger than what the parser takes at once, and so is one item that
// spoils no other.
func TestLargeList(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	filler := strings.Repeat("x", 1000)
	const count = 6000
	for i := range count {
		fmt.Fprintf(&b, "- apiVersion: v1\n  kind: Service\n  metadata: {name: s%d, annotations: {a: %s}}\n", i, filler)
	}
	b.WriteString("- oops: [\n")
	if b.Len() <= maxYAML {
		t.Fatalf("the list has %d bytes only", b.Len())
	}
	r, err := loadText(t, b.String())
	if got := len(r.objects); got != count {
		t.Errorf("%d objects, want %d", got, count)
	}
	var bad *DocumentError
	if !errors.As(err, &bad) {
		t.Fatalf("Load: %v, want a DocumentError", err)
	}
	if diff := cmp.Diff([]int{3*count + 4, count}, []int{bad.Line, bad.Item}); diff != "" {
		t.Errorf("line and item (-want +got):\n%s", diff)
	}
}

// What is refused costs little, however much there is of it: this counts
// allocations, which no other work on the machine can change.
func TestRefusedItemsAreCheap(t *testing.T) {
	const head, array = "kind: List\napiVersion: v1\nitems:\n", `{"kind": "List", "apiVersion": "v1", "items": [0`
	for _, c := range []struct {
		name, head, item, tail string
		most                   float64 // allocations for an item
	}{
		{"empty YAML items", head, "-\n", "", 8},
		{"YAML numbers", head, "- 1\n", "", 11},
		{"YAML objects of no kind", head, "- a: 1\n", "", 30},
		{"YAML items that do not parse", head, "- [\n", "", 50},
		{"YAML documents", "", "--- 1\n", "", 55},
		{"JSON numbers", array, ",0", "]}", 8},
		{"JSON objects of no kind", array, ",{}", "]}", 6},
		{"JSON objects of no name", array, `,{"kind":"Service","apiVersion":"v1"}`, "]}", 22},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The first errors cost more, and what the parser is given at once is in both.
			const few, many = 10_000, 30_000
			cost := func(n int) float64 {
				text := []byte(c.head + strings.Repeat(c.item, n) + c.tail)
				return allocated(func() {
					found, err := readContent(t.Context(), "a.yaml", text)
					if err != nil || len(found.errs) != maxErrors+1 || found.more < n-maxErrors {
						t.Errorf("%d errors and %d more, %v; want %d and %d", len(found.errs), found.more, err, maxErrors+1, n-maxErrors)
					}
				})
			}
			if got := (cost(many) - cost(few)) / (many - few); got <= 0 || got > c.most {
				t.Errorf("%.1f allocations an item, want at most %.0f", got, c.most)
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
