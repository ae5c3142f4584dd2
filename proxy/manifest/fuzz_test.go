package manifest

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	yaml "go.yaml.in/yaml/v3"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// addSeeds adds all files of testdata.
func addSeeds(f *testing.F) {
	f.Helper()
	for _, path := range []string{"testdata/cluster.yaml", "testdata/cluster.json"} {
		data, err := os.ReadFile(path)
		testenv.NoError(f, err)
		f.Add(data)
	}
	paths, err := filepath.Glob("testdata/scenarios/*.txtar")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		testenv.NoError(f, err)
		for _, file := range archive.Files {
			f.Add(file.Data)
		}
	}
	f.Add([]byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}], \"ports.-1\": x}\n"))
	f.Add([]byte("\ufeff--- {a: b}\r\n...\r\n%YAML 1.1\n---\n\u0085---\u0085x"))
}

// FuzzRead reads any data: without a panic, in bounded time, and each object and each error
// has a line within the file.
func FuzzRead(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		elapsed := testenv.ProcessorTime(t)
		c, err := readContent(t.Context(), "a.yaml", data, nil)
		if err != nil {
			t.Fatalf("readContent: %v, want only errors of documents", err)
		}
		if took := elapsed(); took > bounded {
			t.Errorf("took %v, want at most %v", took, bounded)
		}
		last := 1 + len(regexp.MustCompile("[\n\r\u0085\u2028\u2029]").FindAll(data, -1)) // the line ends of YAML
		for _, o := range c.objects {
			if o.line < 1 || o.line > last || o.Name == "" || o.kind != nodeKind && o.Namespace == "" {
				t.Errorf("got object %v at line %d of %d", o.key, o.line, last)
			}
		}
		for _, e := range c.errs {
			if e.File != "a.yaml" || e.Err == nil || e.Line < 0 || e.Line > last || e.Item < noItem {
				t.Errorf("got error %+v in a file of %d lines", e, last)
			}
		}
	})
}

// FuzzYAML compares the JSON of a YAML document with what the parser's own decoder makes of it.
func FuzzYAML(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var node yaml.Node
		if len(data) > 1<<16 || yaml.Unmarshal(data, &node) != nil || len(node.Content) == 0 {
			return
		}
		got, err := (&converter{left: maxExpanded}).json(node.Content[0])
		if err != nil {
			return
		}
		var decoded any
		if err := node.Decode(&decoded); err != nil {
			return // Duplicate merge keys, and binary data, for example.
		}
		want, err := json.Marshal(decoded)
		if err != nil || bytes.Contains(data, []byte("!")) || hasTime(decoded) {
			return // Other keys than texts, other tags, and times, which stay as they are written.
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// hasTime reports whether a decoded value contains a time.
func hasTime(v any) bool {
	switch v := v.(type) {
	case time.Time:
		return true
	case []any:
		return slices.ContainsFunc(v, hasTime)
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(v)), hasTime)
	}
	return false
}
