package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// suite is what a run of "go test" runs: tests of one package, perhaps in a virtual machine.
type suite struct {
	folder string
	ipvs   bool
}

// limit bounds the test of a mutant: one that waits for ever because of the mutant has failed.
func (s suite) limit() time.Duration {
	if s.ipvs {
		return 10 * time.Minute
	}
	return 4 * time.Minute
}

// outcome is what "go test" did.
type outcome struct {
	// failed is the first test that failed. If none did, it is the one that began last: it has ended
	// the process.
	failed string
	// passed is the number of tests that passed, subtests included.
	passed int
	// built is false if the tests did not compile.
	built  bool
	output string
}

// event is a line of "go test -json"; see "go doc test2json" and "go help buildjson".
type event struct{ Action, Package, Test, Output string }

// goTest runs tests. The error is one of running them: that they fail is none.
func goTest(ctx context.Context, s suite, pattern string, args ...string) (outcome, error) {
	all := []string{"test", "-json", "-count=1", "-vet=off", "-timeout=" + s.limit().String(), "-run=" + pattern}
	if s.ipvs {
		all = append(all, "-tags=ipvs", "-exec="+vmProgram()+" -modules br_netfilter,ip_vs -kernel 6.1")
	}
	command := exec.CommandContext(ctx, "go", slices.Concat(all, args, []string{s.folder})...)
	command.WaitDelay = 10 * time.Second // a test that goes on keeps the output open
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	runErr := command.Run()
	if ctx.Err() != nil {
		return outcome{}, ctx.Err()
	}
	var exit *exec.ExitError
	if runErr != nil && !errors.As(runErr, &exit) {
		return outcome{}, fmt.Errorf("go test: %w", runErr)
	}
	o, err := read(&stdout)
	o.output += stderr.String()
	if err == nil && runErr != nil && o.built && o.failed == "" {
		err = fmt.Errorf("go test failed, and no test did: %w\n%s", runErr, o.output)
	}
	return o, err
}

// read reads the events of "go test -json".
func read(events io.Reader) (outcome, error) {
	o := outcome{built: true}
	var output strings.Builder
	last := "no test"
	for decoder := json.NewDecoder(events); ; {
		var e event
		if err := decoder.Decode(&e); errors.Is(err, io.EOF) {
			o.output = output.String()
			return o, nil
		} else if err != nil {
			return o, fmt.Errorf("reading the events of go test: %w\n%s", err, output.String())
		}
		output.WriteString(e.Output)
		switch {
		case e.Action == "build-fail":
			o.built = false
		case e.Action == "run":
			last = e.Test
		case e.Action == "pass" && e.Test != "":
			o.passed++
		case e.Action == "fail" && o.failed == "":
			o.failed = cmp.Or(e.Test, last+", which ended the process")
		}
	}
}

// vmProgram is where the Makefile builds internal/testing/vm.
func vmProgram() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("vipkit-vm-%d", os.Getuid()))
}
