package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

const nftablesBackend = "nftables"

// backend is a choice of the flag -backend.
type backend struct {
	open func() (proxy.Backend, error)
	// count returns the number of IPv4 objects in the kernel.
	count func() (int, error)
	// floor fills in the floor of a report; nil for backends without one.
	floor func(*report) error
	// measure measures in another way than others; nil if it does not.
	measure func(*report) error
	// programs says that the backend runs programs.
	programs bool
}

func backends() map[string]backend {
	return map[string]backend{
		nftablesBackend: {func() (proxy.Backend, error) { return nftables.New(nftables.Options{}) }, countElements("vipkit"), measureFloor, nil, false},
		"iptables":      {func() (proxy.Backend, error) { return iptables.New(iptables.Options{}) }, countRules, nil, nil, true},
		"ipvs":          {func() (proxy.Backend, error) { return ipvs.New(ipvs.Options{}) }, countServers, measureServerFloor, nil, true},
		"userspace":     {func() (proxy.Backend, error) { return userspace.New(userspace.Options{}) }, countElements("vipkit-userspace"), nil, nil, false},
		"kernelspace":   {measure: measureSimulated},
	}
}

// countElements returns a function that counts the elements of all sets of a table.
func countElements(table string) func() (int, error) {
	return func() (total int, err error) {
		conn, err := nfnetlink.Open()
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		return elementsOf(context.Background(), conn, nfnetlink.Table{Family: nfnetlink.IPv4, Name: table})
	}
}

func elementsOf(ctx context.Context, conn *nfnetlink.Conn, table nfnetlink.Table) (total int, err error) {
	var sets []nfnetlink.SetInfo
	if err := conn.Sets(ctx, table, nfnetlink.Collect(&sets)); err != nil {
		return 0, err
	}
	for _, s := range sets {
		n := 0
		err := conn.Elements(ctx, table, s.Name, nfnetlink.Visitor[nfnetlink.Element]{
			Begin: func() { n = 0 },
			Each:  func(*nfnetlink.Element) error { n++; return nil },
		})
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// countRules returns the number of rules of iptables.
func countRules() (int, error) {
	out, err := exec.Command("iptables-save").Output()
	if err != nil {
		return 0, fmt.Errorf("iptables-save: %w", err)
	}
	return bytes.Count(out, []byte("\n-A ")), nil
}

// bench is a backend under measurement.
type bench struct {
	world      *world
	tracker    *proxy.ServiceChangeTracker
	backend    proxy.Backend
	operations func() uint64
	snapshot   proxy.Snapshot
	err        error // of change
}

// newBench makes a backend for the network namespace of the calling thread, a world, and an
// empty tracker.
func newBench(o options) (*bench, error) {
	made, err := backends()[o.Backend].open()
	if err != nil {
		return nil, err
	}
	return benchOf(o, made), nil
}

// benchOf is newBench for a backend.
func benchOf(o options, made proxy.Backend) *bench {
	return &bench{
		world:      newWorld(o.Services, o.Endpoints),
		tracker:    proxy.NewServiceChangeTracker(proxy.TrackerOptions{NodeName: o.nodeName()}),
		backend:    made,
		operations: made.Abilities().Operations,
	}
}

// measure fills in the report, without its floor.
func measure(r *report) (err error) {
	if other := backends()[r.Backend].measure; other != nil {
		return other(r)
	}
	if err := measureEmpty(r); err != nil {
		return err
	}
	if err := measureOne(r); err != nil {
		return err
	}
	if r.Elements, err = backends()[r.Backend].count(); err != nil {
		return err
	}
	return restart(r)
}

// measureEmpty measures a cluster without services, twice: the first time loads kernel modules.
func measureEmpty(r *report) error {
	o := r.options
	o.Services = 0
	for range 2 {
		b, err := newBench(o)
		if err != nil {
			return err
		}
		_, r.EmptyMs, err = b.start()
		if err := errors.Join(err, b.backend.Cleanup(context.Background()), b.backend.Close()); err != nil {
			return err
		}
	}
	return nil
}

// measureOne measures one process with the backend.
func measureOne(r *report) (err error) {
	b, err := newBench(r.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.backend.Close()) }()
	if backends()[r.Backend].programs {
		stop := watchPrograms()
		defer func() { r.ProgramsMiB = stop() }()
	}
	if r.LoadMs, r.ColdMs, err = b.start(); err != nil {
		return err
	}
	if r.ColdMiB, err = peakRSS(); err != nil {
		return err
	}
	if err := forgetPeak(); err != nil {
		return err
	}
	if err := b.changes(r); err != nil {
		return err
	}
	later, err := peakRSS()
	r.RSSMiB = max(r.ColdMiB, later)
	return err
}

// start measures the time from the first API object to the first snapshot, and from the
// snapshot to the end of the first Apply.
func (b *bench) start() (loadMs, applyMs float64, err error) {
	begin := time.Now()
	b.world.load(b.tracker)
	if b.snapshot, err = b.tracker.Next(context.Background(), proxy.Snapshot{}); err != nil {
		return 0, 0, err
	}
	loaded := time.Now()
	err = b.backend.Apply(context.Background(), proxy.Snapshot{}, b.snapshot)
	return milliseconds(loaded.Sub(begin)), milliseconds(time.Since(loaded)), err
}

// burst is how many services change at once.
const burst = 1000

// changes measures changes, one by one and in a burst. They change the world as replay does.
func (b *bench) changes(r *report) error {
	var scaled []time.Duration
	replaced := b.replaceEndpoints(r)
	var err error
	if r.ChangeMiB, err = peakRSS(); err != nil {
		return err
	}
	for range r.Changes / 2 {
		i := b.world.grow()
		scaled = append(scaled, b.change(i))
		b.world.shrink(i)
		scaled = append(scaled, b.change(i))
	}
	r.BurstMs = milliseconds(b.change(b.world.replaceMany(burst)...))
	r.ChangeP50Us, r.ChangeP99Us = percentile(replaced, 50), percentile(replaced, 99)
	r.ScaleP50Us = percentile(scaled, 50)
	return b.err
}

// replaceEndpoints replaces one endpoint after the other.
func (b *bench) replaceEndpoints(r *report) (took []time.Duration) {
	before := b.operations()
	for range r.Changes {
		took = append(took, b.change(b.world.replace()))
	}
	r.OpsPerChange = float64(b.operations()-before) / float64(r.Changes)
	return took
}

// change measures the time from the EndpointSlices of some services to one commit. After
// an error it does nothing.
func (b *bench) change(services ...int) time.Duration {
	if b.err != nil {
		return 0
	}
	var changed []*discoveryv1.EndpointSlice
	for _, i := range services {
		changed = append(changed, b.world.slice(i))
	}
	ctx, start, last := context.Background(), time.Now(), b.snapshot
	for _, s := range changed {
		b.tracker.UpdateEndpointSlice(s)
	}
	if b.snapshot, b.err = b.tracker.Next(ctx, last); b.err == nil {
		b.err = b.backend.Apply(ctx, last, b.snapshot)
	}
	return time.Since(start)
}

// restart measures how a new process adopts the kernel objects.
func restart(r *report) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe, append([]string{"-adopt"}, os.Args[1:]...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	if _, err := fmt.Sscan(string(out), &r.RestartMs, &r.RestartOps, &r.RestartMiB); err != nil {
		return fmt.Errorf("restart: output %q: %w", out, err)
	}
	return nil
}

// adopt is the new process of restart: it makes the same world, applies it, and prints the time
// in milliseconds, the number of operations and the peak of memory in MiB.
func adopt(o options) (err error) {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.backend.Close()) }()
	b.world.replay(o.Changes)
	_, took, err := b.start()
	if err == nil {
		var peak float64
		peak, err = peakRSS()
		fmt.Println(took, b.operations(), peak)
	}
	return err
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// percentile returns the p-th percentile in microseconds.
func percentile(durations []time.Duration, p int) float64 {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	return float64(sorted[len(sorted)*p/100].Nanoseconds()) / 1000
}
