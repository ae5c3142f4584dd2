package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/filestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdin, streams{out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(status)
}

// streams are where the program writes.
type streams struct{ out, err io.Writer }

// errUsage says that the usage has been written.
var errUsage = errors.New("bad usage")

// run is the program; it gives the exit status.
func run(ctx context.Context, args []string, in io.Reader, s streams) int {
	a, command, err := parseFlags(args, s)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := a.open(ctx); err != nil {
		complain(s.err, err)
		return 1
	}
	status := 0
	if len(command) > 0 {
		err = a.do(ctx, command)
	} else {
		err = a.serve(ctx, in)
	}
	if err := errors.Join(err, a.close()); err != nil {
		complain(s.err, err)
		status = 1
	}
	return status
}

// complain writes an error. Where that fails, the status still tells.
func complain(w io.Writer, err error) {
	_, _ = fmt.Fprintln(w, "allocator:", err)
	if errors.Is(err, allocator.ErrNoMap) {
		_, _ = fmt.Fprintln(w, "The commands repair and import make one.")
	}
}

// app is what the commands work on.
type app struct {
	streams

	ranges []allocator.Config
	kind   string // of the store
	path   string // of its file
	store  allocator.Store
	pool   *allocator.Pool
	close  func() error
}

func parseFlags(args []string, s streams) (*app, []string, error) {
	a := &app{streams: s, kind: "memory", close: func() error { return nil }}
	f := flag.NewFlagSet("allocator", flag.ContinueOnError)
	f.SetOutput(s.err)
	f.Func("range", "`ranges` to hand out, by commas, such as 10.96.0.0/16,fd00::/112,30000-32767", a.setRanges)
	f.Func("store", "`where` to keep what was handed out: memory, file:PATH, kubernetes or kubernetes:KUBECONFIG (default memory)", a.setStore)
	if err := f.Parse(args); err != nil {
		return nil, nil, err
	}
	if len(a.ranges) == 0 && a.kind != "kubernetes" {
		_, _ = fmt.Fprintln(s.err, "-range is required") // The status tells as well.
		f.Usage()
		return nil, nil, errUsage
	}
	return a, f.Args(), nil
}

func (a *app) setRanges(text string) error {
	a.ranges = nil
	for item := range strings.SplitSeq(text, ",") {
		c, err := allocator.ParseConfig(item)
		if err != nil {
			return err
		}
		a.ranges = append(a.ranges, c)
	}
	return nil
}

func (a *app) setStore(text string) error {
	kind, path, hasPath := strings.Cut(text, ":")
	isKnown := kind == "memory" && !hasPath || kind == "file" && path != "" || kind == "kubernetes" && hasPath == (path != "")
	if kind == "etcd" {
		return errors.New("for etcd there is another command: go -C allocator/etcdstore run ./etcdallocator")
	}
	if !isKnown {
		return errors.New("a store is memory, file:PATH, kubernetes or kubernetes:KUBECONFIG")
	}
	a.kind, a.path = kind, path
	return nil
}

// open opens the store and makes the pool.
func (a *app) open(ctx context.Context) error {
	switch a.kind {
	case "kubernetes":
		if err := a.openKubernetes(ctx); err != nil {
			return err
		}
	case "file":
		file, err := filestore.Open(a.path)
		if err != nil {
			return err
		}
		a.store, a.close = file, file.Close
	default:
		a.store = allocator.NewMemory(allocator.State{}, nil)
	}
	pool, err := allocator.NewPool(a.store, allocator.PoolOptions{Ranges: a.ranges})
	if err != nil {
		return errors.Join(err, a.close())
	}
	a.pool = pool
	return nil
}

// serve does the commands of each line, whether or not those before went well. When
// the program is told to end it does, also while it waits for a line.
func (a *app) serve(ctx context.Context, in io.Reader) error {
	failed := 0
	input := bufio.NewScanner(in)
	lines := scan(ctx, input)
	for {
		select {
		case <-ctx.Done():
			return errors.New("interrupted")
		case line, ok := <-lines:
			switch command := strings.Fields(line); {
			case !ok && failed > 0:
				return errors.Join(fmt.Errorf("%d commands failed", failed), input.Err())
			case !ok:
				return input.Err()
			case len(command) == 0:
			default:
				if err := a.do(ctx, command); err != nil {
					complain(a.err, err)
					failed++
				}
			}
		}
	}
}

// scan gives the lines of the input. Nothing can end a read that waits for the next
// one; whoever does not want it need not wait, too.
func scan(ctx context.Context, input *bufio.Scanner) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for input.Scan() {
			select {
			case lines <- input.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

// do does one command.
func (a *app) do(ctx context.Context, command []string) error {
	name, args := command[0], command[1:]
	switch {
	case name == "allocate" && len(args) > 0:
		return a.allocate(ctx, args, false)
	case name == "try" && len(args) > 0:
		return a.allocate(ctx, args, true)
	case name == "release" && len(args) > 1:
		return a.release(ctx, args)
	case name == "show" && len(args) == 0:
		return a.show(ctx)
	case name == "repair" && len(args) > 0:
		return a.repair(ctx, args)
	case name == "import" && len(args) == 1:
		return a.importMap(ctx, args[0])
	}
	return fmt.Errorf("no such command, or not the arguments that it takes: %s", strings.Join(command, " "))
}
