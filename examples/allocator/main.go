package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/vipkit/vipkit/allocator"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `usage: allocator -range RANGES -store STORE COMMAND

  allocate OWNER [ADDRESS|PORT|ipv4|ipv6|port|port*3 ...]
  release OWNER KEY...
  show
  create
  repair [-force] FILE

`

// run runs one command, and gives the exit status.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	a := &app{out: out}
	f := flag.NewFlagSet("allocator", flag.ContinueOnError)
	f.SetOutput(errs)
	f.Func("range", "`ranges` to allocate from, such as 10.96.0.0/16,fd00::/112,30000-32767", a.setRanges)
	where := f.String("store", "", "`where` to keep the allocations: "+stores)
	f.Usage = func() {
		_, _ = io.WriteString(errs, usage) // The user sees missing output.
		f.PrintDefaults()
	}
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	err := a.open(ctx, *where)
	if err == nil {
		err = errors.Join(a.do(ctx, f.Args()), a.close())
	}
	if err != nil {
		_, _ = fmt.Fprintf(errs, "allocator: %v\n", err) // The exit status shows the error, too.
		return 1
	}
	return 0
}

// app is what the commands share.
type app struct {
	out    io.Writer
	ranges []allocator.Config
	store  allocator.Store
	pool   *allocator.Pool
	close  func() error
}

func (a *app) setRanges(text string) error {
	for item := range strings.SplitSeq(text, ",") {
		c, err := allocator.ParseConfig(item)
		if err != nil {
			return err
		}
		a.ranges = append(a.ranges, c)
	}
	return nil
}

// do runs a command.
func (a *app) do(ctx context.Context, words []string) error {
	if len(words) == 0 {
		return errors.New("a command is missing; allocator -h lists them")
	}
	name, args := words[0], words[1:]
	switch {
	case name == "allocate" && len(args) > 0:
		return a.allocate(ctx, allocator.Owner(args[0]), args[1:])
	case name == "release" && len(args) > 1:
		return a.release(ctx, allocator.Owner(args[0]), args[1:])
	case name == "show" && len(args) == 0:
		return a.show(ctx)
	case name == "create" && len(args) == 0:
		return a.create(ctx)
	case name == "repair" && len(args) == 1:
		return a.repair(ctx, args[0], false)
	case name == "repair" && len(args) == 2 && args[0] == "-force":
		return a.repair(ctx, args[1], true)
	}
	return fmt.Errorf("unknown command, or wrong arguments: %s; allocator -h lists the commands", strings.Join(words, " "))
}
