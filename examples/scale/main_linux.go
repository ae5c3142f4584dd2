package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/internal/kernel/netns"
)

// Limits of the address ranges of a world, and of the run time.
const (
	maxServices  = 1<<21 - 1
	maxEndpoints = 1 << 22 // of all services
	maxChanges   = 1 << 20
)

// options are the flags of the command line.
type options struct {
	Backend   string `json:"backend"`
	Services  int    `json:"services"`
	Endpoints int    `json:"endpoints"`
	Changes   int    `json:"changes"`
	floor     bool
	adopt     bool
}

// nodeName is the node of the tracker, which has a hundredth of the endpoints; none with kernelspace,
// as their objects are not the backend's.
func (o *options) nodeName() string {
	if o.Backend == "kernelspace" {
		return "node-of-no-pod"
	}
	return "node-0"
}

// report is the printed result. Times are in milliseconds or microseconds, as the names say.
type report struct {
	options
	startReport
	// From the API object to the kernel: one endpoint replaced (Change), one endpoint added or
	// removed (Scale), a thousand services changed at once (Burst).
	ChangeP50Us  float64 `json:"changeP50Us"`
	ChangeP99Us  float64 `json:"changeP99Us"`
	ScaleP50Us   float64 `json:"scaleP50Us"`
	BurstMs      float64 `json:"burstMs"`
	OpsPerChange float64 `json:"opsPerChange"`
	memoryReport
	// Elements is the number of elements of sets and maps, of rules of iptables, of all objects
	// of ipvs but rules, as listed by the kernel, or of those of the simulated HNS.
	Elements int `json:"elements"`
	restartReport
	floorReport
	callReport
}

// startReport has the figures of the start of a process.
type startReport struct {
	// LoadMs is from the first API object to the snapshot, ColdMs from the snapshot to the
	// kernel. EmptyMs is ColdMs without services: what is always made, and programs that are
	// started for it.
	EmptyMs float64 `json:"emptyMs"`
	LoadMs  float64 `json:"loadMs"`
	ColdMs  float64 `json:"coldMs"`
}

// memoryReport has peaks of resident memory, the program's code included.
type memoryReport struct {
	// RSSMiB is the peak of all measurements but the restart, ColdMiB the peak until the first Apply has
	// ended, ChangeMiB while endpoints are replaced one by one, and RestartMiB the peak of the new
	// process until it has adopted the kernel objects.
	RSSMiB     float64 `json:"rssMiB"`
	ColdMiB    float64 `json:"coldMiB,omitempty"`
	ChangeMiB  float64 `json:"changeMiB,omitempty"`
	RestartMiB float64 `json:"restartMiB,omitempty"`
	// ProgramsMiB is the peak of the largest program that the backend ran, such as iptables-restore.
	ProgramsMiB float64 `json:"programsMiB,omitempty"`
}

// restartReport has the figures of a new process that adopts the kernel objects.
type restartReport struct {
	RestartMs  float64 `json:"restartMs"`
	RestartOps uint64  `json:"restartOps"`
}

// floorReport has the figures of the bare netlink messages with the same objects.
type floorReport struct {
	FloorColdMs      float64 `json:"floorColdMs,omitempty"`
	FloorChangeP50Us float64 `json:"floorChangeP50Us,omitempty"`
	FloorChangeP99Us float64 `json:"floorChangeP99Us,omitempty"`
}

func main() {
	status, err := netns.Privileged(func() int { return exitStatus(run(os.Args[1:])) })
	if err != nil {
		status = exitStatus(err)
	}
	os.Exit(status)
}

// exitStatus returns the exit status for an error, and prints the error.
func exitStatus(err error) int {
	if err == nil || errors.Is(err, flag.ErrHelp) { // Parse has printed the flags.
		return 0
	}
	fmt.Fprintln(os.Stderr, "scale:", err)
	return 1
}

// run measures as the arguments say, and prints the report.
func run(args []string) error {
	o, err := parseOptions(args)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		// Prefer less memory to the last microsecond, as an agent on a node would.
		debug.SetGCPercent(50)
	}
	if o.adopt {
		return adopt(o)
	}
	r := report{options: o}
	if err := inNamespace(func() error { return measure(&r) }); err != nil {
		return err
	}
	if o.floor {
		if err := inNamespace(func() error { return backends()[o.Backend].floor(&r) }); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(r)
}

// inNamespace runs f in a new network namespace, and then removes the namespace.
func inNamespace(f func() error) (err error) {
	ns, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	return ns.Do(f)
}

// parseOptions parses the command line. The error is flag.ErrHelp if the user asked for help.
func parseOptions(args []string) (o options, err error) {
	names := strings.Join(slices.Sorted(maps.Keys(backends())), ", ")
	f := flag.NewFlagSet("scale", flag.ContinueOnError)
	f.StringVar(&o.Backend, "backend", nftablesBackend, "backend to measure: "+names)
	f.IntVar(&o.Services, "services", 1000, "number of services")
	f.IntVar(&o.Endpoints, "endpoints", 10, "endpoints of each service")
	f.IntVar(&o.Changes, "changes", 200, "number of changes to measure")
	f.BoolVar(&o.floor, "floor", false, "also measure the bare netlink messages of nftables or ipvs")
	f.BoolVar(&o.adopt, "adopt", false, "only adopt the objects of an earlier process (used by the program itself)")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case backends()[o.Backend].open == nil && backends()[o.Backend].measure == nil:
		err = fmt.Errorf("-backend %q: unknown backend, want %s", o.Backend, names)
	case o.floor && backends()[o.Backend].floor == nil:
		err = fmt.Errorf("-floor needs -backend %s or ipvs", nftablesBackend)
	case o.Services < 1 || o.Services > maxServices:
		err = fmt.Errorf("-services %d: want 1 to %d", o.Services, maxServices)
	case o.Endpoints < 1 || o.Endpoints > maxEndpoints/o.Services:
		err = fmt.Errorf("-endpoints %d: want at least 1, and at most %d in all services", o.Endpoints, maxEndpoints)
	case o.Changes < 1 || o.Changes > maxChanges:
		err = fmt.Errorf("-changes %d: want 1 to %d", o.Changes, maxChanges)
	}
	return o, err
}
