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
	// Kinds are the kinds of stores; the first one is the default of -store.
	Kinds []Kind
	// Flags, unless nil, adds the flags that only this program has.
	Flags func(*flag.FlagSet)
}

// Main runs the program with the arguments and streams of the process, and gives the exit
// status.
func (p Program) Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return p.Run(ctx, os.Args[1:], Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
}

// Streams are the standard streams of a program.
type Streams struct {
	// In is read by commands that take a list.
	In io.Reader
	// Out gets results, Err errors and questions.
	Out, Err io.Writer
}

var (
	errNoRange     = errors.New("-range is required, before the command")
	errInterrupted = errors.New("interrupted")
)

// Run runs the program with these arguments, and gives the exit status.
func (p Program) Run(ctx context.Context, args []string, s Streams) int {
	a, command, err := p.parse(args, s)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	if err := a.open(ctx); err != nil {
		a.printError(err)
		return 1
	}
	if len(command) > 0 {
		err = a.do(ctx, command)
	} else {
		err = a.serve(ctx)
	}
	if err := errors.Join(err, a.close()); err != nil {
		a.printError(err)
		return 1
	}
	return 0
}

// app is the state that the commands share.
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

// printError writes an error and advice. If that fails, the exit status still shows the
// error.
func (a *app) printError(err error) {
	_, _ = fmt.Fprintf(a.Err, "%s: %v\n%s", a.name, err, a.advice(err))
}

// advice returns a line that says what to do about an error; "" if the error itself says it.
func (a *app) advice(err error) string {
	_, canCreate := a.store.(repair.Creator)
	_, isTooMany := errors.AsType[*repair.TooManyError](err)
	outside, isOutside := errors.AsType[*allocator.RangeError](err)
	switch {
	case errors.Is(err, allocator.ErrNoMap) && canCreate:
		return "The commands repair, import and create make one.\n"
	case errors.Is(err, repair.ErrNoOwners), isTooMany:
		return "If the file is right, run repair -force FILE.\n"
	case isOutside && outside.Range == "":
		return "The ranges are " + names(a.ranges) + "; set others with -range.\n"
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
	f.SetOutput(io.Discard) // Parse would write the whole usage after each error.
	f.Func("range", "`ranges` to allocate from, separated by commas, such as 10.96.0.0/16,fd00::/112,30000-32767", a.setRanges)
	f.Func("store", fmt.Sprintf("`where` to keep the allocations: %s (default %s)", p.stores(), p.Kinds[0].Name),
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
		_, _ = fmt.Fprintf(s.Err, "%s: %v\n%[1]s -h lists flags and commands.\n", p.Name, err) // The exit status shows it, too.
	}
	return a, f.Args(), err
}

// usage writes the purpose, the commands and the flags of the program.
func (p Program) usage(out io.Writer, f *flag.FlagSet) {
	var b strings.Builder
	fmt.Fprintf(&b, `%s allocates addresses and node ports, and shows their owners.

	%[1]s -range RANGES [-store WHERE] [COMMAND ARGUMENT...]

Without a command it reads commands from standard input, one in each line.

Commands:
`, p.Name)
	for _, c := range commands() {
		fmt.Fprintf(&b, "  %-26s%s\n", c.form, c.about)
	}
	fmt.Fprintf(&b, `
Example:
  %s -range 10.96.0.0/16,30000-32767 -store file:allocations create
  %[1]s -range 10.96.0.0/16,30000-32767 -store file:allocations allocate services/default/web ipv4 port*2

Flags:
`, p.Name)
	_, _ = io.WriteString(out, b.String()) // The user sees missing output.
	f.SetOutput(out)
	f.PrintDefaults()
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
		a.printError(opened.Unusable) // The other ranges can be used.
	}
	if a.pool, err = allocator.NewPool(a.store, allocator.PoolOptions{Ranges: a.ranges}); err != nil {
		return errors.Join(err, a.close())
	}
	return nil
}

// serve runs the commands of each line, also after one has failed. It ends with ctx, also
// while it waits for a line.
func (a *app) serve(ctx context.Context) error {
	failed := 0
	input := bufio.NewScanner(a.In)
	lines := scan(ctx, input)
	for {
		line, more := "", false
		select {
		case <-ctx.Done():
		case line, more = <-lines:
		}
		if ctx.Err() != nil {
			return errInterrupted // lines may be closed then, too, even if there is more input
		}
		if !more {
			break
		}
		command := strings.Fields(line)
		if len(command) == 0 {
			continue
		}
		if err := a.do(ctx, command); err != nil {
			a.printError(err)
			failed++
		}
	}
	if failed > 0 {
		return errors.Join(fmt.Errorf("%d commands failed", failed), input.Err())
	}
	return input.Err()
}

// scan returns the lines of the input. A read that waits for the next line cannot be ended;
// serve does not wait for it.
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
