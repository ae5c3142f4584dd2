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
// A line "lane: ipvs" says that the test needs IPVS: it runs in a virtual machine. A
// mutant whose text is not found, that does not compile, or whose test does not run, is an error
// of the table. Each test also runs once without mutants, and must pass. The exit status is 0 if
// all mutants were caught.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// folder has the table, relative to the root of the repository.
const folder = "internal/house/mutants/table"

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	names := flags.String("run", "", "only mutants whose names match this regular `expression`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; -run takes the names of mutants", flags.Arg(0))
	}
	expression, err := regexp.Compile(*names)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	all, err := readTable(os.DirFS("."))
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(all, func(m *mutant) bool { return !expression.MatchString(m.name) })
	if len(chosen) == 0 {
		return fmt.Errorf("no mutant matches %q; %s has their names", *names, folder)
	}
	return runAll(ctx, log.New(os.Stdout, "", 0), chosen)
}
