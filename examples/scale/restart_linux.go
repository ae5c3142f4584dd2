package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// restart has a fresh process take the kernel over.
func restart(r *report) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, "-adopt", "-backend", r.Backend,
		"-services", strconv.Itoa(r.Services), "-endpoints", strconv.Itoa(r.Endpoints), "-changes", strconv.Itoa(r.Changes))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	if _, err := fmt.Sscan(string(out), &r.RestartMs, &r.RestartOps); err != nil {
		return fmt.Errorf("restart said %q: %w", out, err)
	}
	return nil
}

// adopt is what the fresh process does: it makes the same world, applies it and
// prints how many milliseconds and operations that took.
func adopt(o options) (err error) {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	b.world.replay(o.Changes)
	b.world.load(b.tracker)
	s, err := b.tracker.Next(context.Background(), proxy.Snapshot{})
	if err != nil {
		return err
	}
	start := time.Now()
	if err := b.backend.Apply(context.Background(), proxy.Snapshot{}, s); err != nil {
		return err
	}
	fmt.Println(milliseconds(time.Since(start)), b.backend.Operations())
	return nil
}

// replay brings a new world to where changes leaves one.
func (w *world) replay(changes int) {
	for range changes {
		w.replace()
	}
	for range changes / 2 {
		w.shrink(w.grow())
	}
	w.replaceMany(burst)
}
