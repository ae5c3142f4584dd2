package manifest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"github.com/vipkit/vipkit/internal/testenv"
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
	f.Add([]byte("\ufeff--- {a: b}\r\n...\r\n%YAML 1.1\n---\n\u0085---\u0085x"))
}

func inUTF8(t *testing.T, data []byte) []byte {
	t.Helper()
	text, err := utf8Text(data)
	if err != nil {
		t.Fatalf("utf8Text: %v", err)
	}
	return text
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
		last := bytes.Count(inUTF8(t, data), []byte("\n")) + 1
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

// FuzzYAML compares the JSON of a YAML document with that of kubectl's parser.
func FuzzYAML(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := parseYAML(document{line: 1, text: data}, len(data))
		if err != nil {
			return
		}
		got, err := json.Marshal(v)
		if err != nil {
			t.Fatalf("encode as JSON: %v", err)
		}
		reference := yaml.YAMLToJSONStrict
		if bytes.Contains(data, []byte("<<")) {
			reference = yaml.YAMLToJSON
		}
		want, err := reference(data)
		if err != nil {
			t.Fatalf("kubectl's parser: %v", err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}

// FuzzListing compares a List that is read item by item with the same List read
// as a whole.
func FuzzListing(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for doc := range documents(inUTF8(t, data)) {
			checkListing(t, doc)
		}
	})
}
