package manifest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// checkListing compares a document that is read item by item with the same
// document as a whole. It reports whether the document was split and all its
// parts were good.
func checkListing(t *testing.T, doc document) bool {
	t.Helper()
	l, ok := splitItems(doc)
	if !ok {
		return false
	}
	split, err := l.values(t.Context())
	bad := slices.ContainsFunc(split, func(v raw) bool { return v.err != nil })
	if err != nil || bad || len(split) == 0 || split[0].item == noItem {
		return false // It is parsed as a whole then, or has no items.
	}
	whole, err := wholeYAML(doc)
	if err != nil {
		t.Fatalf("items parse, the whole does not: %v\n%s", err, doc.text)
	}
	if diff := cmp.Diff(texts(whole), texts(split)); diff != "" {
		t.Fatalf("-whole +split:\n%s\n%s", diff, doc.text)
	}
	return true
}

func texts(values []raw) []string {
	var all []string
	for _, v := range values {
		all = append(all, v.typ.String()+string(v.data))
	}
	return all
}

// Lists of random lines, many of which look like the beginning of an item but are in quotes,
// blocks or brackets.
func TestRandomListings(t *testing.T) {
	fragments := []string{
		"- a: 1\n", "- a: 2\n", "  b: 2\n", "  c: &x 1\n", "  d: *x\n", "- *x\n", "-\n", "- \n", "-   - a\n", "  - a\n", " - a\n",
		"- \"q\n", "- q\"\n", "  q: \"q\n", "  q\"\n", "- 'a\n", "- b'\n", "- [1,\n", "- 2]\n", "- {a: 1,\n", "  b: 2}\n", "- }\n",
		"- |\n", "- >-\n", "  text\n", "  e: |\n", "    text\n", "    - text\n", "  # text\n", "# text\n", "\n", "   \n", "- - - x\n",
		"- ? x\n", "  : y\n", "- !t a\n", "- &x a\n", "- a\n", "-a\n", "--\n", "  <<: {b: 3}\n", "metadata: {}\n", "more:\n", "more: |\n", "more: \"\n", "\t- a\n", "- a # c\n",
	}
	good := 0
	for seed := range uint64(10_000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var b strings.Builder
		b.WriteString("kind: List\napiVersion: v1\nitems:\n")
		for range 1 + rng.IntN(7) {
			b.WriteString(fragments[rng.IntN(len(fragments))])
		}
		if checkListing(t, document{line: 1, text: []byte(b.String())}) {
			good++
		}
	}
	if good < 500 {
		t.Errorf("got %d lists whose items all parse, want at least 500 for a useful test", good)
	}
}

// Each item is found with its line, and the frame keeps its lines.
func TestSplitItems(t *testing.T) {
	text := "kind: List\nitems: # here\n\n- a: 1\n  b: 2\n# comment\n- c\n\nmetadata: {}\n"
	l, ok := splitItems(document{line: 11, text: []byte(text)})
	if !ok {
		t.Fatal("got no split, want one")
	}
	var got []string
	for _, item := range l.items {
		got = append(got, fmt.Sprintf("%d:%q", item.line, item.text))
	}
	want := []string{`14:"- a: 1\n  b: 2\n# comment\n"`, `17:"- c\n\n"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("items (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("kind: List\nitems: # here\n\n\n\n\n\n\nmetadata: {}\n", string(l.frame)); diff != "" {
		t.Errorf("frame (-want +got):\n%s", diff)
	}
	for _, text := range []string{
		"kind: List\n", "items: []\n", "items:\n", "items:\n  a: b\n", "items:\n# nothing\n", "  items:\n  - a\n", "items:\n-a\n", "%YAML 1.1\n---\nitems:\n- a\n",
	} {
		if l, ok := splitItems(document{line: 1, text: []byte(text)}); ok {
			t.Errorf("%q: got %d items, want no split", text, len(l.items))
		}
	}
}

// Texts whose error depends on how they are split.
func TestErrorsOfSplits(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"quoted text that looks like a list", "\"a\nitems:\n- \\q\nb\"\n", "a.yaml:3: found unknown escape character"},
		{"a line like a directive within a document", "a: |\n  b\n%c\n---\napiVersion: v1\nkind: Service\n", "a.yaml:5: Service without metadata.name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := loadText(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load: got error %v, want %q", err, c.want)
			}
		})
	}
}

// A merge key of one item does not hide the duplicate key of another.
func TestMergeKeyAndDuplicateKey(t *testing.T) {
	l, _ := splitItems(document{line: 1, text: []byte("kind: List\napiVersion: v1\nitems:\n- {a: &a {}, <<: *a}\n- b: 1\n  b: 2\n")})
	values, err := l.values(t.Context())
	if err != nil || len(values) != 2 || values[0].err != nil || values[1].err == nil || !strings.Contains(values[1].err.Error(), `key "b" already set in map`) {
		t.Errorf("got items %v and error %v, want an error of the second item alone", values, err)
	}
}

// Bad items do not affect good ones, whether items are parsed together or one by one, and the
// error of each has its line and position.
func TestGoodBetweenBadItems(t *testing.T) {
	const count = 3 * maxErrors
	for _, c := range []struct{ name, bad, want string }{
		{"no object", "- oops\n", "not an object"},
		{"no YAML", "- [\n", "did not find expected node content"},
		{"no kind", "- a: 1\n", "no kind"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			b.WriteString("apiVersion: v1\nkind: List\nitems:\n")
			for i := range count {
				fmt.Fprintf(&b, "%s- {apiVersion: v1, kind: Service, metadata: {name: s%d}}\n", c.bad, i)
			}
			r, err := loadText(t, b.String())
			if got := len(r.objects); got != count {
				t.Errorf("got %d objects, want %d", got, count)
			}
			lines := errorLines(err)
			if got, want := len(lines), maxErrors+1; got != want {
				t.Fatalf("got %d errors, want %d", got, want)
			}
			if want := fmt.Sprintf("%d more errors", count-maxErrors); !strings.Contains(err.Error(), want) {
				t.Errorf("errors without %q: %s", want, lines[0])
			}
			for i := range maxErrors {
				want := fmt.Sprintf("a.yaml:%d: items[%d]: %s", 4+2*i, 2*i, c.want)
				if !strings.Contains(err.Error(), want) {
					t.Fatalf("errors without %q: %s", want, lines[1])
				}
			}
		})
	}
}
