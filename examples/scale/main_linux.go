package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/vipkit/vipkit/internal/netns"
)

func main() {
	status, err := netns.Privileged(func() int {
		err := run(os.Args[1:])
		switch {
		case errors.Is(err, flag.ErrHelp):
			return 0 // the flags have been shown
		case err != nil:
			fmt.Fprintln(os.Stderr, "scale:", err)
			return 1
		}
		return 0
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		status = 1
	}
	os.Exit(status)
}

// run measures what the arguments ask for and prints the report.
func run(args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	if o.adopt {
		return adopt(o)
	}
	// As an agent on a node would, prefer less memory to the last microsecond.
	debug.SetGCPercent(50)
	r := report{options: o}
	if err := inNamespace(func() error { return measure(&r) }); err != nil {
		return err
	}
	if o.floor {
		if err := inNamespace(func() error { return measureFloor(&r) }); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(r)
}

// inNamespace runs f in a network namespace that is gone afterwards.
func inNamespace(f func() error) (err error) {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	return ns.Do(f)
}
