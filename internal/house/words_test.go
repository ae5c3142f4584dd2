package house

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// refusedForms returns the forms of words for which CONTRIBUTING.md has a better term. They are
// refused in names, comments and strings of code that is not a test.
func refusedForms() map[string]string {
	all := map[string]string{}
	for word, forms := range map[string]string{
		"accuse": "accuse accuses accused accusing", "acquit": "acquit acquits acquitted acquittal",
		"book": "book books", "door": "door doors", "page": "page pages",
		"settle": "settle settles settled settling", "twin": "twin twins",
	} {
		for form := range strings.FieldsSeq(forms) {
			all[form] = word
		}
	}
	return all
}

// otherMeanings returns the packages in which a refused word is a standard term: pages of HTML,
// pages of a list that an API server or etcd returns in parts.
func otherMeanings() map[string][]string {
	return map[string][]string{
		".":                          {"page"},
		"allocator/etcdstore":        {"page"},
		"allocator/kubestore":        {"page"},
		"examples/kubeproxy":         {"page"},
		"examples/kubeproxy/agent":   {"page"},
		"examples/manifestproxy":     {"page"},
		"internal/testing/agenttest": {"page"},
		"internal/peer/browser":      {"page"},
		"proxy/health":               {"page"},
		"proxy/inspect":              {"page"},
	}
}

// checkWords finds refused words.
func checkWords(s *source) []finding {
	if s.isTest() {
		return nil
	}
	folder := path.Dir(s.path)
	return s.refusedWords(otherMeanings()[folder])
}

// refusedWords finds the refused words, each once in a line.
func (s *source) refusedWords(allowed []string) []finding {
	forms := refusedForms()
	found := map[finding]bool{}
	clean := map[string]bool{} // Most names are there often.
	check := func(p token.Pos, text string) {
		if clean[text] {
			return
		}
		clean[text] = true
		for i, line := range strings.Split(text, "\n") {
			for _, word := range wordsOf(line) {
				word, refused := forms[word]
				if refused && !slices.Contains(allowed, word) {
					found[finding{s.path, s.line(p) + i, advice(word)}] = true
					clean[text] = false
				}
			}
		}
	}
	for _, group := range s.ast.Comments {
		for _, c := range group.List {
			check(c.Pos(), c.Text)
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Ident:
			check(n.Pos(), n.Name)
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				check(n.Pos(), n.Value)
			}
		}
		return true
	})
	return slices.SortedFunc(maps.Keys(found), func(a, b finding) int {
		return cmp.Or(a.line-b.line, strings.Compare(a.text, b.text))
	})
}

func advice(word string) string { return "do not use " + word + ": CONTRIBUTING.md has the terms" }

var wordPattern = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// wordsOf returns the words of a text, and of names in it, in lower case.
func wordsOf(text string) []string {
	words := wordPattern.FindAllString(text, -1)
	for i := range words {
		words[i] = strings.ToLower(words[i])
	}
	return words
}

func TestRefusedWords(t *testing.T) {
	for text, want := range map[string][]string{
		"package a\n// Each book has pages.\nvar a = 1":                             {"2 book", "2 page"},
		"package a\nvar twinSuffix, unsettled, theDoors, handbook, opened_page int": {"2 door", "2 page", "2 twin"},
		"package a\nvar door = 1\nvar b, c = door, door":                            {"2 door", "3 door"},
		"package a\nconst text = `a\nsettled`":                                      {"3 settle"},
		"package a\nimport \"example.org/door\"\nvar a = door.A":                    {"3 door"},
		"package a\n// indoor settlement\nfunc pageant(Bookend, outdoorsy int) {}":  nil,
	} {
		s, err := parse("a/a.go", text)
		testenv.NoError(t, err)
		var got []string
		for _, f := range checkWords(s) {
			word, _, _ := strings.Cut(strings.TrimPrefix(f.text, "do not use "), ":")
			got = append(got, fmt.Sprintf("%d %s", f.line, word))
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("findings (-want +got):\n%s\nin %s", diff, text)
		}
	}
}
