package manifest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

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
	if want := fmt.Sprintf("%d more, which are not listed", 2*maxErrors); !strings.Contains(err.Error(), want) {
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

// allocated counts the allocations while f runs.
func allocated(f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs)
}
