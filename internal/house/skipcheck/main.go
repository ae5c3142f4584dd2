// Command skipcheck runs "go test -json" with its own arguments and prints a
// summary: a line for each package, the output of failed and skipped tests, and at the end the totals as
//
//	12 passed, 0 failed, 1 skipped
//
// Subtests, examples and seeds of fuzz targets count as tests. The exit status
// is 0 if all tests passed. With CI=true in the environment, a skipped test is a failure: a
// test that never runs there proves nothing.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "skipcheck:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, args []string) error {
	begin := time.Now()
	command := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	command.Stderr = os.Stderr
	events, err := command.StdoutPipe()
	if err != nil {
		return fmt.Errorf("starting go test: %w", err)
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("starting go test: %w", err)
	}
	r := newReport(out)
	readErr := r.read(events)
	if readErr != nil {
		// go test ends only when its output was read.
		_, _ = io.Copy(io.Discard, events)
	}
	waitErr := command.Wait()
	verdict := r.close(time.Since(begin), os.Getenv("CI") == "true")
	switch {
	case readErr != nil:
		return readErr
	case waitErr != nil:
		return fmt.Errorf("go test: %w", waitErr)
	}
	return verdict
}
