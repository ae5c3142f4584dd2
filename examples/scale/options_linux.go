package main

import (
	"flag"
	"fmt"
	"os"
)

// The addresses that the world gives out, and the time of a reader, end here.
const (
	maxServices  = 1<<21 - 1
	maxEndpoints = 1 << 22 // of all services
	maxChanges   = 1 << 20
)

// options are what the command line says.
type options struct {
	Backend   string `json:"backend"`
	Services  int    `json:"services"`
	Endpoints int    `json:"endpoints"`
	Changes   int    `json:"changes"`
	floor     bool
	adopt     bool
}

// parseOptions reads the command line. What is wrong with it is the error; it
// is flag.ErrHelp if only the flags were asked for.
func parseOptions(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.SetOutput(os.Stderr)
	f.StringVar(&o.Backend, "backend", nftablesBackend, "backend to measure: "+backendNames())
	f.IntVar(&o.Services, "services", 1000, "number of services")
	f.IntVar(&o.Endpoints, "endpoints", 10, "endpoints of each service")
	f.IntVar(&o.Changes, "changes", 200, "number of changes to measure")
	f.BoolVar(&o.floor, "floor", false, "also measure the bare netlink transactions of nftables")
	f.BoolVar(&o.adopt, "adopt", false, "only take over what an earlier process left (used by the program itself)")
	if err := f.Parse(args); err != nil {
		return options{}, err
	}
	return o, o.check()
}

// check says what is wrong with the options, if anything is.
func (o options) check() error {
	switch {
	case backends()[o.Backend].open == nil:
		return fmt.Errorf("-backend %q: there is no such backend, only %s", o.Backend, backendNames())
	case o.floor && o.Backend != nftablesBackend:
		return fmt.Errorf("-floor is for -backend %s", nftablesBackend)
	case o.Services < 1 || o.Services > maxServices:
		return fmt.Errorf("-services %d: at least 1, at most %d", o.Services, maxServices)
	case o.Endpoints < 1 || o.Endpoints > maxEndpoints/o.Services:
		return fmt.Errorf("-endpoints %d: at least 1, at most %d of all services", o.Endpoints, maxEndpoints)
	case o.Changes < 1 || o.Changes > maxChanges:
		return fmt.Errorf("-changes %d: at least 1, at most %d", o.Changes, maxChanges)
	}
	return nil
}
