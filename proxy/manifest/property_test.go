package manifest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// holding is the content of a file in the model: the version of each Service.
type holding struct {
	services map[string]int
	broken   bool
}

// write returns the file, with the broken part at a random position.
func (c holding) write(rng *rand.Rand) string {
	var docs []string
	for _, name := range slices.Sorted(maps.Keys(c.services)) {
		docs = append(docs, service(name, c.services[name]))
	}
	rng.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	if c.broken {
		bad := []string{"oops\n", "a: [\n", "\tb\n", service("\"\"", 1), "apiVersion: v2\nkind: Service\nmetadata: {name: x}\n"}
		docs = slices.Insert(docs, rng.IntN(len(docs)+1), bad[rng.IntN(len(bad))])
	}
	return strings.Join(docs, "---\n") + strings.Repeat("\n", rng.IntN(3))
}

// model is a naive model of what the handler must have.
type model struct {
	files map[string]holding        // on disk
	shown map[string]holding        // at the last check
	kept  map[string]map[string]int // by file
}

// check updates the model as checks of the files do.
func (m *model) check() {
	for name, old := range m.shown {
		if _, ok := m.files[name]; !ok {
			delete(m.shown, name)
			delete(m.kept, name)
			continue
		}
		if m.kept[name] == nil {
			m.kept[name] = make(map[string]int)
		}
		maps.Copy(m.kept[name], old.services)
	}
	for name, now := range m.files {
		m.shown[name] = now
		if !now.broken {
			delete(m.kept, name)
		}
		for s := range now.services {
			delete(m.kept[name], s)
		}
	}
}

// want returns the version of each Service that the handler must have.
func (m *model) want() map[string]int {
	want := make(map[string]int)
	for _, in := range []func(file string) map[string]int{
		func(file string) map[string]int { return m.shown[file].services },
		func(file string) map[string]int { return m.kept[file] },
	} {
		for _, file := range slices.Sorted(maps.Keys(m.shown)) {
			for name, version := range in(file) {
				if _, ok := want[name]; !ok {
					want[name] = version
				}
			}
		}
	}
	return want
}

// edit writes, moves or deletes a file.
func (m *model) edit(t *testing.T, rng *rand.Rand, dir string) string {
	name := fmt.Sprintf("%d.yaml", rng.IntN(4))
	_, there := m.files[name]
	switch n := rng.IntN(10); {
	case n == 0 && there:
		testenv.NoError(t, os.Remove(filepath.Join(dir, name)))
		delete(m.files, name)
		return "delete " + name
	case n == 1 && there:
		to := fmt.Sprintf("%d.yaml", rng.IntN(4))
		testenv.NoError(t, os.Rename(filepath.Join(dir, name), filepath.Join(dir, to)))
		moved := m.files[name]
		delete(m.files, name)
		m.files[to] = moved
		return "move " + name + " to " + to
	}
	c := holding{services: make(map[string]int), broken: rng.IntN(4) == 0}
	for range rng.IntN(5) {
		c.services[fmt.Sprintf("s%d", rng.IntN(6))] = 1 + rng.IntN(3)
	}
	m.files[name] = c
	write(t, dir, name, c.write(rng))
	return fmt.Sprintf("write %s %v", name, c)
}

// TestRandomEdits makes random edits: after each check the handler has the objects of the
// model, and at the end, with good files, those of a new Load.
func TestRandomEdits(t *testing.T) {
	versions := loadVersions(t)
	for seed := range uint64(40) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			dir := t.TempDir()
			f, r := follow(t, dir)
			m := model{files: map[string]holding{}, shown: map[string]holding{}, kept: map[string]map[string]int{}}
			var history []string
			for range 60 {
				for range rng.IntN(4) {
					history = append(history, m.edit(t, rng, dir))
				}
				untilStable(t, f)
				m.check()
				history = append(history, "check")
				want := make(map[string]string)
				for name, version := range m.want() {
					want["Service default/"+name] = versions[version]["Service default/"+name]
				}
				if diff := cmp.Diff(want, r.objects); diff != "" {
					t.Fatalf("handler (-want +got):\n%s\n%s", diff, strings.Join(history, "\n"))
				}
			}
			for name, c := range m.files {
				c.broken = false
				write(t, dir, name, c.write(rng))
			}
			untilStable(t, f)
			fresh, err := load(t, dir)
			if want, got := fmt.Sprint(err), fmt.Sprint(f.problems()); want != got {
				t.Errorf("got problems %s, want %s", got, want)
			}
			if diff := cmp.Diff(fresh.objects, r.objects); diff != "" {
				t.Errorf("objects (-loaded +followed):\n%s\n%s", diff, strings.Join(history, "\n"))
			}
		})
	}
}

// loadVersions returns the Services of the model by version, as the recorder has
// them.
func loadVersions(t *testing.T) map[int]map[string]string {
	t.Helper()
	versions := make(map[int]map[string]string)
	for version := 1; version <= 3; version++ {
		var docs []string
		for n := range 6 {
			docs = append(docs, service(fmt.Sprintf("s%d", n), version))
		}
		r, err := loadText(t, strings.Join(docs, "---\n"))
		testenv.NoError(t, err)
		versions[version] = r.objects
	}
	return versions
}

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
		c, err := readContent(t.Context(), "a.yaml", data)
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
