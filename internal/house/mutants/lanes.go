package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// lane is how tests run that need more than the kernel of this machine.
type lane struct {
	args []string // of "go test"
	vm   bool     // the tests run in a virtual machine
	// limit bounds the test of a mutant: one that waits for ever because of the mutant has failed.
	limit time.Duration
}

// defaultLane has what "make test" runs on the kernel of this machine.
const defaultLane = "test"

// lanes returns the lanes by name.
func lanes() map[string]lane {
	return map[string]lane{
		defaultLane: {limit: 4 * time.Minute},
		"ipvs": {
			args: []string{"-tags=ipvs", "-exec=" + vmProgram() + " -modules br_netfilter,ip_vs -kernel 6.1"},
			vm:   true, limit: 10 * time.Minute,
		},
	}
}

// vmProgram is where the Makefile builds internal/testing/vm, too.
func vmProgram() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("vipkit-vm-%d", os.Getuid()))
}
