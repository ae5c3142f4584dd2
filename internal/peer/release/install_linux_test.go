package release_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestInstall installs the agent as users do, by its path and a version, from a repository with the
// files of this checkout and a tag. Go refuses that if go.mod has a replacement. Nothing is downloaded:
// dependencies come from the module cache of this machine.
func TestInstall(t *testing.T) {
	const module, version = "github.com/vipkit/vipkit", "v0.987.0"
	r := checkout(t)
	r.require(module, version)
	r.git("tag", version)
	r.git("tag", "examples/kubeproxy/"+version)
	downloads, bin := filepath.Join(modcache(t), "cache", "download"), t.TempDir()
	install := exec.CommandContext(t.Context(), "go", "install", module+"/examples/kubeproxy@"+version)
	install.Dir = t.TempDir() // without a go.mod, as for users
	install.Env = append(os.Environ(),
		"GOPROXY=file://"+downloads, "GOPRIVATE="+module, "GOSUMDB=off", "GOVCS=*:git",
		// -trimpath and no cgo: the packages of dependencies are in the build cache, as of the image.
		"GOFLAGS=-trimpath -modcacherw", "CGO_ENABLED=0", "GOBIN="+bin, "GOMODCACHE="+t.TempDir(), "GOWORK=off", "GOTOOLCHAIN=local",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+r.folder+".insteadOf", "GIT_CONFIG_VALUE_0=https://"+module,
	)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("go install: %v\n%s", err, out)
	}
	for flag, want := range map[string]string{
		"-version": "kubeproxy " + module + "/examples/kubeproxy " + version + " " + runtime.Version() + "\n",
		"--version=raw": `version.Info{Major:"0", Minor:"987", EmulationMajor:"", EmulationMinor:"", MinCompatibilityMajor:"", ` +
			`MinCompatibilityMinor:"", GitVersion:"` + version + `", `,
	} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "kubeproxy"), flag).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%s: got error %v, output %s; want %s", flag, err, out, want)
		}
	}
}

// checkout returns a repository with the files of this checkout, as they are now.
func checkout(t *testing.T) *repository {
	t.Helper()
	const from = "../../.."
	list := exec.CommandContext(t.Context(), "git", "-C", from, "ls-files", "-z")
	names, err := list.Output()
	testenv.NoError(t, err)
	r := &repository{t: t, folder: t.TempDir()}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(from, name))
		if os.IsNotExist(err) {
			continue // It was removed, and not yet committed.
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(r.folder, name)), 0o700)
		}
		testenv.NoError(t, err)
		r.write(name, string(content))
	}
	r.git("init", "--quiet")
	return r
}

// require commits the files as a release has them: the agent's go.mod names the version of the library.
func (r *repository) require(module, version string) {
	r.t.Helper()
	edit := exec.CommandContext(r.t.Context(), "go", "-C", "examples/kubeproxy", "mod", "edit", "-require="+module+"@"+version)
	edit.Dir = r.folder
	if out, err := edit.CombinedOutput(); err != nil {
		r.t.Fatalf("go mod edit: %v\n%s", err, out)
	}
	r.commit()
}

// modcache returns the folder of the module cache.
func modcache(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()
	testenv.NoError(t, err)
	return strings.TrimSpace(string(out))
}
