//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// A program that the command has started does not outlive it.
func TestProgramsEndTogether(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	command := exec.CommandContext(ctx, "sh", "-c", "sleep 60 & echo $!; wait")
	endTogether(command)
	output, err := command.StdoutPipe()
	testenv.NoError(t, err)
	testenv.NoError(t, command.Start())
	var child int
	if _, err := fmt.Fscan(output, &child); err != nil {
		t.Fatal(err)
	}
	cancel()
	_ = command.Wait() // It was killed.
	for begin := time.Now(); !errors.Is(syscall.Kill(child, 0), syscall.ESRCH); time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("program %d runs after the command has ended, want it to end, too", child)
		}
	}
}
