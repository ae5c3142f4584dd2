package manifest

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bounded is more time than any of the inputs here may take on a busy machine with the race
// detector, and far less than one that multiplies would take.
const bounded = 2 * time.Minute

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
	for _, c := range []struct{ name, text, want string }{
		{"nested aliases", nested.String(), "excessive aliasing"},
		{"nested merge keys", merged.String(), "excessive aliasing"},
		{
			"many aliases of a long text",
			"a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 300_000) + "]\n",
			"aliases make more than",
		},
		{
			"many aliases of a long key",
			"a: &a {? " + strings.Repeat("x", 1000) + " : 1}\nb: [" + strings.Repeat("*a,", 100_000) + "]\n",
			"aliases make more than",
		},
		{"deep flow", strings.Repeat("[", 100_000), "exceeded max depth"},
		{"deep block", strings.Repeat("- ", 100_000), "exceeded max depth"},
		{"deep JSON", `{"kind": ` + strings.Repeat("[", 100_000), "exceeded max depth"},
		{"one large document", "a:\n" + strings.Repeat("- 1\n", maxYAML/4), "too large for a YAML document"},
		{"one large item", "kind: List\napiVersion: v1\nitems:\n- a:\n" + strings.Repeat("  - 1\n", maxYAML/4), "items[0]: too large for a YAML document or list item"},
		{"many documents", strings.Repeat("--- 1\n", 100_000), "errors more"},
		{"too many items of a YAML list", "kind: List\napiVersion: v1\nitems:\n" + strings.Repeat("-\n", maxObjects+2), "more than"},
		{"too many items of a JSON list", "{\"items\": [0" + strings.Repeat(",0", maxObjects) + "]}", "more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			_, err := loadText(t, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load: %.200v, want %q", err, c.want)
			}
			if took := time.Since(start); took > bounded {
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
