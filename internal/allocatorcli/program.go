package allocatorcli

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
	"github.com/vipkit/vipkit/allocator/repair"
)

// Program is one of the commands.
type Program struct {
	// Name of the command.
	Name string
	// Kinds of stores, of which the first one is what -store is by default.
	Kinds []Kind
	// Flags, unless nil, adds those that only this program has.
	Flags func(*flag.FlagSet)
}

// Main is the whole program: it takes what the system gives it, and gives the exit status.
func (p Program) Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return p.Run(ctx, os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
}

// Streams are what a program reads and where it writes.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

var (
	errNoRange     = errors.New("-range is required, before the command")
	errInterrupted = errors.New("interrupted")
)

// Run is the program for some arguments; it gives the exit status.
func (p Program) Run(ctx context.Context, args []string, s Streams) int {
	a, command, err := p.parse(args, s)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := a.open(ctx); err != nil {
		a.complain(err)
		return 1
	}
	status := 0
	if len(command) > 0 {
		err = a.do(ctx, command)
	} else {
		err = a.serve(ctx)
	}
	if err := errors.Join(err, a.close()); err != nil {
		a.complain(err)
		status = 1
	}
	return status
}

// app is what the commands work on.
type app struct {
	Streams

	name   string
	kind   Kind
	path   string
	ranges []allocator.Config
	store  allocator.Store
	pool   *allocator.Pool
	close  func() error
}

// complain writes an error. Where that fails, the status still tells.
func (a *app) complain(err error) {
	_, _ = fmt.Fprintf(a.Err, "%s: %v\n%s", a.name, err, a.advice(err))
}

// advice is what to do about an error, in a line; "" if that says it already.
func (a *app) advice(err error) string {
	_, canCreate := a.store.(repair.Creator)
	_, isTooMany := errors.AsType[*repair.TooManyError](err)
	outside, isOutside := errors.AsType[*allocator.RangeError](err)
	switch {
	case errors.Is(err, allocator.ErrNoMap) && canCreate:
		return "The commands repair, import and create make one.\n"
	case errors.Is(err, repair.ErrNoOwners), isTooMany:
		return "If the file is right, repair -force FILE does what it says.\n"
	case isOutside && outside.Range == "":
		return "There is " + names(a.ranges) + "; -range names others.\n"
	}
	return ""
}

// names lists ranges.
func names(ranges []allocator.Config) string {
	var all []string
	for _, c := range ranges {
		all = append(all, c.String())
	}
	return strings.Join(all, ", ")
}

func (p Program) parse(args []string, s Streams) (*app, []string, error) {
	a := &app{Streams: s, name: p.Name, kind: p.Kinds[0]}
	f := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	f.SetOutput(io.Discard) // It would write the whole usage below each error.
	f.Func("range", "`ranges` to hand out, by commas, such as 10.96.0.0/16,fd00::/112,30000-32767", a.setRanges)
	f.Func("store", fmt.Sprintf("`where` to keep what was handed out: %s (default %s)", p.stores(), p.Kinds[0].Name),
		func(text string) (err error) {
			a.kind, a.path, err = p.kind(text)
			return err
		})
	if p.Flags != nil {
		p.Flags(f)
	}
	err := f.Parse(args)
	if err == nil && len(a.ranges) == 0 && !a.kind.RangesOptional {
		err = errNoRange
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		p.usage(s.Err, f)
	case err != nil:
		_, _ = fmt.Fprintf(s.Err, "%s: %v\n%[1]s -h lists flags and commands.\n", p.Name, err) // The status tells as well.
	}
	return a, f.Args(), err
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

// open opens the store and makes the pool.
func (a *app) open(ctx context.Context) error {
	opened, err := a.kind.Open(ctx, a.path, a.ranges)
	if err != nil {
		return fmt.Errorf("opening the store: %w", err)
	}
	a.store, a.ranges, a.close = opened.Store, opened.Ranges, opened.Close
	if a.close == nil {
		a.close = func() error { return nil }
	}
	if opened.Unusable != nil {
		a.complain(opened.Unusable) // The others can be used for all that.
	}
	if a.pool, err = allocator.NewPool(a.store, allocator.PoolOptions{Ranges: a.ranges}); err != nil {
		return errors.Join(err, a.close())
	}
	return nil
}

// serve does the commands of each line, whether or not those before went well. When
// the program is told to end it does, also while it waits for a line.
func (a *app) serve(ctx context.Context) error {
	failed := 0
	input := bufio.NewScanner(a.In)
	lines := scan(ctx, input)
	for {
		select {
		case <-ctx.Done():
			return errInterrupted
		case line, ok := <-lines:
			switch command := strings.Fields(line); {
			case ctx.Err() != nil:
				return errInterrupted // The lines end then, too, whether or not there are more.
			case !ok && failed > 0:
				return errors.Join(fmt.Errorf("%d commands failed", failed), input.Err())
			case !ok:
				return input.Err()
			case len(command) == 0:
			default:
				if err := a.do(ctx, command); err != nil {
					a.complain(err)
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
func (a *app) do(ctx context.Context, words []string) error {
	c, err := find(words[0])
	if err != nil {
		return err
	}
	if a.kind.CommandTime == 0 {
		return c.call(ctx, a, words[1:])
	}
	limited, cancel := context.WithTimeout(ctx, a.kind.CommandTime)
	defer cancel()
	err = c.call(limited, a, words[1:])
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%s has not answered within %v: %w", a.kind.Name, a.kind.CommandTime, err)
	}
	return err
}
