package etcdstore_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

const (
	libraryModule = "github.com/vipkit/vipkit"
	storeModule   = libraryModule + "/allocator/etcdstore"
	release       = "v0.999.0"
)

// TestRequire publishes both modules in a module proxy of files, and requires them from there as
// users do.
func TestRequire(t *testing.T) {
	proxy := t.TempDir()
	root := filepath.Join("..", "..")
	publish(t, proxy, libraryModule, root, read(t, root, "go.mod"))
	mod := read(t, root, "allocator/etcdstore/go.mod")
	if strings.Contains(mod, "replace") {
		t.Error("go.mod has a replacement, which hides a wrong requirement")
	}
	mod = regexp.MustCompile(`(`+libraryModule+`) v\S+`).ReplaceAllString(mod, "$1 "+release)
	publish(t, proxy, storeModule, filepath.Join(root, "allocator", "etcdstore"), mod)

	cache := strings.TrimSpace(goCommand(t, t.TempDir(), nil, "env", "GOMODCACHE"))
	env := []string{
		"GOPROXY=file://" + proxy + ",file://" + cache + "/cache/download,off", "GOMODCACHE=" + t.TempDir(),
		"GOSUMDB=off", "GOWORK=off", "GOFLAGS=-modcacherw",
	}
	user := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":  "module example.com/user\n\ngo 1.26.0\n",
		"user.go": "package user\n\nimport _ \"" + storeModule + "\"\n",
	} {
		testenv.NoError(t, os.WriteFile(filepath.Join(user, name), []byte(content), 0o600))
	}
	goCommand(t, user, env, "get", storeModule+"@"+release)
	got := goCommand(t, user, env, "list", "-deps", "-f", "{{if .Module}}{{.ImportPath}}@{{.Module.Version}}{{end}}", ".")
	for _, want := range []string{storeModule + "@" + release, libraryModule + "/allocator@" + release} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("packages of a module that requires this one: got\n%swant %s", got, want)
		}
	}
}

func read(t *testing.T, folder, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, name))
	testenv.NoError(t, err)
	return string(content)
}

// goCommand runs the go command and gives its output.
func goCommand(t *testing.T, folder string, env []string, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("go")
	if err != nil {
		testenv.CannotRun(t, "the go command is not in the path")
	}
	c := exec.CommandContext(t.Context(), program, args...)
	c.Dir, c.Env = folder, append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%.4000s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// publish puts a folder as a module into a proxy.
func publish(t *testing.T, proxy, module, folder, mod string) {
	t.Helper()
	versions := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	testenv.NoError(t, os.MkdirAll(versions, 0o700))
	for name, content := range map[string]string{
		"list":            release + "\n",
		release + ".info": fmt.Sprintf(`{"Version":%q}`, release),
		release + ".mod":  mod,
		release + ".zip":  archive(t, folder, module+"@"+release+"/", mod),
	} {
		testenv.NoError(t, os.WriteFile(filepath.Join(versions, name), []byte(content), 0o600))
	}
}

// archive packs the Go files of the module in a folder, without nested modules.
func archive(t *testing.T, folder, prefix, mod string) string {
	t.Helper()
	var all bytes.Buffer
	z := zip.NewWriter(&all)
	add := func(name string, content []byte) error {
		w, err := z.Create(prefix + filepath.ToSlash(name))
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	}
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		name, _ := filepath.Rel(folder, path)
		switch {
		case err != nil, name == ".":
			return err
		case e.IsDir():
			_, inner := os.Stat(filepath.Join(path, "go.mod"))
			if inner == nil || strings.HasPrefix(e.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		case filepath.Ext(name) != ".go":
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return add(name, content)
	})
	if err == nil {
		err = add("go.mod", []byte(mod))
	}
	if err == nil {
		err = z.Close()
	}
	testenv.NoError(t, err)
	return all.String()
}
