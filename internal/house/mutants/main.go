// Command mutants shows that the tests are sharp. It changes one small thing in the code, a
// mutant, and runs a test that must fail then, for each mutant of its table. The checkout stays
// as it is: "go test -overlay" replaces the changed file. Run it in the root of the repository:
//
//	go run ./internal/house/mutants -run '^nftables/'
//
// Each file in folder table has the mutants of an area. A mutant is a name, a sentence
// about what a user would meet, the file, the test, and a part of a unified diff without line
// numbers. Lines that begin with a space or "-" are what the file has, exactly once; lines that
// begin with a space or "+" replace them.
//
//	=== full-set-freezes
//	A set that is full is never made larger, so that new Services wait for ever.
//	file: backends/nftables/sizes_linux.go
//	test: ./backends/nftables ^TestGrowth$
//	 			if f := t.fills[fam][at]; n > 0 && f.size > 0 && f.count+n > f.size {
//	-				return counts, false
//	+				return counts, true
//
// A line "lane: ipvs" names the lane that catches the mutant; without it, "make test" does. A
// mutant whose text is not found, that does not compile, or whose test does not run, is an error
// of the table. Each test also runs once without mutants, and must pass. The exit status is 0 if
// all mutants were caught.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// folder has the table, relative to the root of the repository.
const folder = "internal/house/mutants/table"

func run(ctx context.Context, out io.Writer, args []string) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	names := flags.String("run", "", "only mutants whose names match this regular `expression`")
	lane := flags.String("lane", "", "only mutants of this `lane`: "+strings.Join(laneNames(), ", "))
	list := flags.Bool("list", false, "print the mutants, and run nothing")
	atOnce := flags.Int("p", 2, "how many mutants to run at a time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unknown argument %q; -run takes the names of mutants", flags.Arg(0))
	case *atOnce < 1:
		return fmt.Errorf("-p %d: want at least 1", *atOnce)
	}
	all, err := readTable(os.DirFS("."))
	if err != nil {
		return err
	}
	chosen, err := choose(all, *names, *lane)
	if err != nil {
		return err
	}
	if *list {
		return printTable(out, chosen)
	}
	return runAll(ctx, out, chosen, *atOnce)
}

// choose returns the mutants with a name and a lane. It is an error that names the known ones
// if none has both.
func choose(all []*mutant, names, lane string) ([]*mutant, error) {
	if _, ok := lanes()[lane]; !ok && lane != "" {
		return nil, fmt.Errorf("unknown lane %q: want one of %s", lane, strings.Join(laneNames(), ", "))
	}
	expression, err := regexp.Compile(names)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	var known []string
	var chosen []*mutant
	for _, m := range all {
		if lane != "" && m.lane != lane {
			continue
		}
		known = append(known, m.name)
		if expression.MatchString(m.name) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no mutant matches %q; known ones are:\n\t%s", names, strings.Join(known, "\n\t"))
	}
	return chosen, nil
}

func laneNames() []string { return slices.Sorted(maps.Keys(lanes())) }

func printTable(out io.Writer, all []*mutant) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(w, "mutant\tlane\ttest\twhat a user would meet")
	for _, m := range all {
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\t%s\t%s %s\t%s\n", m.name, m.lane, m.test.folder, m.test.pattern, m.sentence)
		}
	}
	return errors.Join(err, w.Flush())
}

var errSurvived = errors.New("a mutant that survives shows that a test is missing")
