package main

import (
	"os"
	"path/filepath"
)

// lane is how tests run that need more than this machine's kernel and this module.
type lane struct {
	env, args []string
	// before is a command that runs before "go", and gets its arguments.
	before []string
	// vm is true if the tests run in a virtual machine.
	vm bool
}

const defaultLane = "test"

// lanes returns the lanes by name, which are the targets of the Makefile that run their tests.
func lanes() map[string]lane {
	return map[string]lane{
		defaultLane: {},
		"ipvs": {
			args: []string{"-tags=ipvs", "-exec=" + vmProgram() + " -modules br_netfilter,ip_vs -kernel 6.1"},
			vm:   true,
		},
		"windows": {
			env:    []string{"GOOS=windows", "CGO_ENABLED=0"},
			before: []string{".ci/wine/run", "sh", "-c", `exec "$@" -exec "$WINE"`, "sh"},
		},
		"peer":   {},
		"storm":  {},
		"worlds": {env: []string{"VIPKIT_EVERYTHING=1"}},
	}
}

// vmProgram is where the Makefile builds internal/vm, too.
func vmProgram() string { return filepath.Join(os.TempDir(), "vipkit-vm") }
