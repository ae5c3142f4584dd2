package release_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	oldAPI = "package tiny\n\n// Do does nothing.\nfunc Do() {}\n"
	newAPI = "package tiny\n\n// Do does nothing.\nfunc Do(int) {}\n"
)

// repository is a tiny module in a repository of git.
type repository struct {
	t      *testing.T
	folder string
	script string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	script, err := filepath.Abs("../../../.ci/apidiff")
	testenv.NoError(t, err)
	r := &repository{t: t, folder: t.TempDir(), script: script}
	r.write("go.mod", "module example.com/tiny\n\ngo 1.26.0\n")
	r.write("tiny.go", oldAPI)
	r.changelog("## Unreleased\n")
	r.git("init", "--quiet")
	r.commit()
	return r
}

func (r *repository) write(name, text string) {
	r.t.Helper()
	testenv.NoError(r.t, os.WriteFile(filepath.Join(r.folder, name), []byte(text), 0o600))
}

func (r *repository) changelog(text string) {
	r.t.Helper()
	r.write("CHANGELOG.md", "# Changelog\n\n"+text)
}

func (r *repository) commit() {
	r.t.Helper()
	r.git("add", ".")
	r.git("commit", "--quiet", "--message=tiny: a change")
}

func (r *repository) git(args ...string) string {
	r.t.Helper()
	c := exec.CommandContext(r.t.Context(), "git", append([]string{"-c", "user.name=test", "-c", "user.email=test@example.com"}, args...)...)
	c.Dir = r.folder
	out, err := c.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// wantStatus runs the script, and wants an exit status, and texts in its output.
func (r *repository) wantStatus(status int, args []string, texts ...string) {
	r.t.Helper()
	c := exec.CommandContext(r.t.Context(), r.script, args...)
	c.Dir = r.folder
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		r.t.Fatal(err)
	}
	if got := c.ProcessState.ExitCode(); got != status {
		r.t.Errorf("exit status: got %d, want %d; output:\n%s", got, status, out)
	}
	for _, text := range texts {
		if !strings.Contains(string(out), text) {
			r.t.Errorf("output: got\n%swant also %q", out, text)
		}
	}
	if got := r.git("worktree", "list", "--porcelain"); strings.Count(got, "worktree ") != 1 {
		r.t.Errorf("worktrees afterwards: got\n%swant one", got)
	}
	if got := r.git("status", "--porcelain"); strings.Contains(got, "??") {
		r.t.Errorf("files afterwards: got\n%swant none that git does not know", got)
	}
}

// TestAPIDiff changes an API, and checks which versions may have that.
func TestAPIDiff(t *testing.T) {
	r := newRepository(t)
	r.wantStatus(0, nil, "there is no tag v* yet", "BASE=revision")
	r.git("tag", "v0.1.0")
	r.git("tag", "allocator/etcdstore/v0.9.0")
	r.wantStatus(0, nil, "since v0.1.0")

	r.write("tiny.go", oldAPI+"\n// More is new.\nfunc More() {}\n")
	r.wantStatus(0, nil, "Compatible changes", "More: added")

	r.write("tiny.go", newAPI)
	r.wantStatus(1, nil, `neither "Changed" nor "Removed"`, "Do: changed from func() to func(int)")
	r.changelog("## Unreleased\n\n### Changed\n\n- Do.\n")
	r.wantStatus(0, nil, "Incompatible changes")
	r.changelog("## v0.1.1 - 2026-12-01\n\n### Changed\n\n- Do.\n")
	r.wantStatus(1, nil, "v0.1.1", "Do: changed")
	r.changelog("## v0.2.0 - 2026-12-01\n\n### Changed\n\n- Do.\n")
	r.wantStatus(0, nil, "Incompatible changes")
	r.wantStatus(0, []string{"HEAD"}, "since HEAD", "Incompatible changes")

	r.git("tag", "v1.0.0")
	r.wantStatus(1, nil, "v1.0.0 promises compatibility", "Do: changed")
}
