package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// noVM is the exit status where the virtual machine did not run the program.
const noVM = 125

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	status, err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(noVM)
	}
	os.Exit(status)
}

func run(ctx context.Context, args []string) (status int, err error) {
	flags := flag.NewFlagSet("vm", flag.ContinueOnError)
	version := flags.String("kernel", "6.1", "version of the kernel: 6.1 or 6.12")
	modules := flags.String("modules", "", "modules to load before, separated by commas")
	if err := flags.Parse(args); err != nil {
		return 0, err
	}
	if flags.NArg() == 0 {
		return 0, errors.New("no program is given; usage: vm [-kernel 6.1] PROGRAM [ARGUMENT...]")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return 0, fmt.Errorf("no folder for kernels: %w", err)
	}
	k, err := fetch(ctx, filepath.Join(cache, "vipkit", "kernels"), *version)
	if err != nil {
		return 0, fmt.Errorf("kernel %s: %w", *version, err)
	}
	j := job{command: flags.Args()}
	if j.environment, err = exported(ctx, os.Environ()); err != nil {
		return 0, err
	}
	if *modules != "" {
		j.modules = strings.Split(*modules, ",")
	}
	if j.folder, err = os.Getwd(); err != nil {
		return 0, err
	}
	return machine{k, os.Stdout}.run(ctx, j)
}
