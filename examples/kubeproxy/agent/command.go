package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
)

// Main is the command kubeproxy: it reads flags and the file that they name, and does what they say. It returns the
// exit status. Signals that end a program end it.
func Main(args []string, stdout, stderr io.Writer) int {
	c, err := newConfig(runtime.GOOS).readCommandLine(args, stderr)
	if errors.Is(err, pflag.ErrHelp) {
		writeHelp(stdout)
		return 0
	}
	if err != nil {
		return 2
	}
	if c.version != "" {
		_, _ = fmt.Fprintln(stdout, c.version.text()) // A write error needs no report.
		return 0
	}
	level := new(slog.LevelVar)
	level.Set(c.logLevel())
	handler := c.logHandler(stderr, level)
	log := logr.FromSlogHandler(handler)
	c.report(slog.New(handler))
	follow := &follower{args: args, config: c, log: slog.New(handler), level: level}
	// The program must not end because its log has no reader. It catches SIGPIPE and does not
	// ignore it, because child processes inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // A second signal ends the program at once.

	done := "stopped; the rules stay in the kernel, -cleanup removes them"
	if c.Mode == userspaceMode {
		done = "stopped; Services do not work until the next start, -cleanup removes their addresses"
	}
	switch {
	case c.writeTo != "":
		done, err = "written", c.write(c.writeTo)
	case c.cleanup:
		done, err = c.cleanUpAll(ctx, log)
	case c.initOnly:
		done, err = "parameters set", c.prepareNode(ctx, log)
	case c.WindowsRunAsService:
		err = runAsService(ctx, func(ctx context.Context) error { return serveAndFollow(ctx, follow) })
	default:
		err = serveAndFollow(ctx, follow)
	}
	if errors.Is(err, errRestart) {
		log.Info("ended, to be started again", "reason", err.Error())
		return 0
	}
	if err != nil {
		log.Error(err, "failed")
		return 1
	}
	log.Info(done)
	return 0
}
