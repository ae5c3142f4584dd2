package netnstest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/pause"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Unload removes a module and all that depend on it from the kernel, if it is loaded. The kernel
// may still be removing the namespaces of earlier tests, which use the modules.
func Unload(t testing.TB, module string) {
	t.Helper()
	var last error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		all := dependents(t, module)
		if len(all) == 0 {
			return
		}
		for _, name := range all {
			if out, err := exec.CommandContext(t.Context(), "rmmod", name).CombinedOutput(); err != nil {
				last = fmt.Errorf("%w: %s", err, out)
			}
		}
		testenv.NoError(t, pause.For(t.Context(), 10*time.Millisecond))
	}
	t.Fatalf("%s is still loaded: %v", module, last)
}

// dependents returns a loaded module after all modules that depend on it; none if it is not
// loaded.
func dependents(t testing.TB, module string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/modules")
	testenv.NoError(t, err)
	users := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 3 {
			users[f[0]] = strings.FieldsFunc(strings.Trim(f[3], "-"), func(r rune) bool { return r == ',' })
		}
	}
	var visit func(name string)
	visit = func(name string) {
		if _, isLoaded := users[name]; !isLoaded || slices.Contains(all, name) {
			return
		}
		for _, user := range users[name] {
			visit(user)
		}
		all = append(all, name)
	}
	visit(module)
	return all
}

// refusing is a modprobe for the kernel and its tools, which call it with the name or alias of a
// module as the last argument.
const refusing = `#!/bin/sh
PATH=$PATH:/usr/sbin:/sbin
for wanted; do :; done
modprobe -q -D -- "$wanted" | grep -q '/%s\.ko' && exit 1
exec modprobe "$@"
`

// WithoutModule unloads a module, and keeps the kernel from loading it until the end of the test
// or the call of the result.
func WithoutModule(t testing.TB, module string) (end func()) {
	t.Helper()
	const setting = "/proc/sys/kernel/modprobe"
	before, err := os.ReadFile(setting)
	testenv.NoError(t, err)
	script := filepath.Join(t.TempDir(), "modprobe")
	testenv.NoError(t, os.WriteFile(script, fmt.Appendf(nil, refusing, module), 0o700))
	end = func() {
		if err := os.WriteFile(setting, before, 0o644); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(end)
	testenv.NoError(t, os.WriteFile(setting, []byte(script), 0o644))
	Unload(t, module)
	return end
}
