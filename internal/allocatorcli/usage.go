package allocatorcli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// command is what can be done.
type command struct {
	// form is the name and the arguments, as the usage has them.
	form string
	// about is what it does, in a line.
	about string
	// least and most are how many arguments it takes; -1 for any number.
	least, most int
	run         func(a *app, ctx context.Context, args []string) error
}

func commands() []command {
	return []command{
		{"allocate OWNER [WHAT...]", "give keys: addresses, ports, or any: ipv4, ipv6, port, port*3", 1, -1, (*app).allocate},
		{"try OWNER [WHAT...]", "say what allocate would give, and change nothing", 1, -1, (*app).try},
		{"release OWNER KEY...", "free what an owner has", 2, -1, (*app).release},
		{"show", "draw how full the ranges are, and list who has what", 0, 0, (*app).show},
		{"create", "make an empty map, where nobody uses anything yet", 0, 0, (*app).create},
		{"repair [-force] FILE", "make the store say what a file of \"KEY OWNER\" lines says", 1, 2, (*app).repair},
		{"import FILE", "take the keys of a RangeAllocation object", 1, 1, (*app).importMap},
	}
}

func (c command) name() string {
	name, _, _ := strings.Cut(c.form, " ")
	return name
}

// find gives the command of a name.
func find(name string) (command, error) {
	var names []string
	for _, c := range commands() {
		if c.name() == name {
			return c, nil
		}
		names = append(names, c.name())
	}
	return command{}, fmt.Errorf("there is no command %q; there are %s", name, strings.Join(names, ", "))
}

// errMisused says that a command has got other arguments than it takes.
var errMisused = errors.New("wrong arguments")

// call runs the command if it takes the arguments.
func (c command) call(ctx context.Context, a *app, args []string) error {
	err := errMisused
	if len(args) >= c.least && (c.most < 0 || len(args) <= c.most) {
		err = c.run(a, ctx, args)
	}
	if errors.Is(err, errMisused) {
		return fmt.Errorf("%w; usage: %s", err, c.form)
	}
	return err
}

// usage writes what the program does, all that it takes, and how it is used.
func (p Program) usage(out io.Writer, f *flag.FlagSet) {
	var b strings.Builder
	fmt.Fprintf(&b, `%s hands out addresses and node ports, and shows who has them.

	%[1]s -range RANGES [-store WHERE] [COMMAND ARGUMENT...]

Without a command, commands are read from standard input, a line each.

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
	_, _ = io.WriteString(out, b.String()) // Who asked notices what is missing.
	f.SetOutput(out)
	f.PrintDefaults()
}
