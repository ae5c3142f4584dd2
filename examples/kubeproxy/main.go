package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/go-logr/logr"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// run is the program; it gives the exit status.
func run(args []string, stderr io.Writer) int {
	c, err := readCommandLine(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	level := slog.Level(-c.verbosity) // what logr.V(n) becomes in slog
	log := logr.FromSlogHandler(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	for _, n := range c.notes {
		log.Info("configuration", "note", n)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // A second signal ends the program at once.

	done := "stopped; the rules stay in the kernel, -cleanup removes them"
	switch {
	case c.task.cleanup:
		done, err = "all rules are removed", cleanUp(ctx, "", log)
	case c.task.initOnly:
		done, err = "prepared", c.conntrack.prepare("/", runtime.NumCPU())
	default:
		err = serve(ctx, c, log)
	}
	if err != nil {
		log.Error(err, "failed")
		return 1
	}
	log.Info(done)
	return 0
}
