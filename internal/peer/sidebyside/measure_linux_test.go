package sidebyside

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/backends/iptables"
)

// dataplane gets API objects, and has written their rules when a call returns.
type dataplane interface {
	load(w *world) error
	update(old, now *discoveryv1.EndpointSlice) error
	add(s *v1.Service, slice *discoveryv1.EndpointSlice) error
}

// contenders returns the compared dataplanes by name.
func contenders() map[string]func() (dataplane, error) {
	return map[string]func() (dataplane, error){
		"vipkit nftables":             newNFTables,
		"kube-proxy nftables":         func() (dataplane, error) { return newKubeNFTables(true) },
		"kube-proxy nftables, by nft": func() (dataplane, error) { return newKubeNFTables(false) },
		"vipkit iptables-legacy":      func() (dataplane, error) { return newIPTables(iptables.Legacy) },
		"kube-proxy iptables-legacy":  newKubeIPTables,
		"vipkit iptables-nft":         func() (dataplane, error) { return newIPTables(iptables.NFT) },
		"kube-proxy iptables-nft":     newKubeIPTables,
		ipvsOurs:                      newIPVS,
		ipvsTheirs:                    newKubeIPVS,
		ipvsFloor:                     newFloor,
	}
}

// cost is the cost of one step.
type cost struct {
	// Wall is the duration, CPU the processor time, user and system, also of child
	// processes: medians of Rounds. P99 is the longest duration but for one in a hundred.
	Wall, CPU, P99 time.Duration
	Rounds         int
	// Writes is how many objects of nf_tables it changes in the kernel; -1 if they were
	// not counted.
	Writes int
	// Resident is the memory of the process after the step, in bytes, without child processes.
	Resident int64
}

// steps returns the measured steps in order.
func steps() []string { return []string{"cold", "endpoint", "service", "nothing", "restart"} }

// measure measures all steps with one contender; without Services, only the first one.
func measure(name string, services int) (map[string]cost, error) {
	start := contenders()[name]
	if start == nil {
		return nil, fmt.Errorf("unknown contender %q", name)
	}
	w := newWorld(services)
	var d dataplane
	fresh := func() (err error) {
		if d, err = start(); err == nil {
			err = d.load(w)
		}
		return err
	}
	costs := map[string]cost{}
	counts, least, many := true, 5, 5
	if isIPVS(name) {
		counts, least, many = false, 3, 200 // kube-proxy takes seconds for each
	}
	for _, step := range []struct {
		name   string
		rounds int
		counts bool
		do     func() error
	}{
		{"cold", 1, false, fresh},
		{"endpoint", many, counts, func() error { old, now := w.replace(services / 2); return d.update(old, now) }},
		{"service", 5, counts, func() error { return d.add(w.add()) }},
		{"nothing", 5, counts, func() error { old, now := w.annotate(services / 3); return d.update(old, now) }},
		{"restart", 1, counts, fresh},
	} {
		c, err := repeat(min(least, step.rounds), step.rounds, step.do)
		if err == nil && step.counts {
			c.Writes, err = countWrites(step.do)
		}
		if err == nil && isIPVS(name) {
			err = checkIPVS(w)
		}
		if err != nil {
			return nil, fmt.Errorf("%s, %d services, %s: %w", name, services, step.name, err)
		}
		costs[step.name] = c
		if services == 0 {
			break
		}
	}
	return costs, nil
}

// repeat measures a step several times, and gives the median of each time. It ends after some
// rounds and 20 s.
func repeat(least, most int, do func() error) (cost, error) {
	var all []cost
	for begin := time.Now(); len(all) < least || len(all) < most && time.Since(begin) < 20*time.Second; {
		c, err := once(do)
		if err != nil {
			return cost{}, err
		}
		all = append(all, c)
	}
	resident, err := residentMemory()
	out := cost{Writes: -1, Rounds: len(all), Resident: resident}
	slices.SortFunc(all, func(a, b cost) int { return int(a.Wall - b.Wall) })
	out.Wall, out.P99 = all[len(all)/2].Wall, all[(len(all)*99-1)/100].Wall
	slices.SortFunc(all, func(a, b cost) int { return int(a.CPU - b.CPU) })
	out.CPU = all[len(all)/2].CPU
	return out, err
}

// residentMemory returns the memory of this process in bytes.
func residentMemory() (int64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	var size, resident int64
	_, err = fmt.Sscan(string(text), &size, &resident)
	return resident * int64(os.Getpagesize()), err
}

func once(do func() error) (cost, error) {
	runtime.GC() // Do not measure the garbage of earlier steps.
	before, err := processorTime()
	if err != nil {
		return cost{}, err
	}
	begin := time.Now()
	err = do()
	wall := time.Since(begin)
	after, err2 := processorTime()
	return cost{Wall: wall, CPU: after - before}, errors.Join(err, err2)
}

// processorTime returns the processor time of this process and of its ended child processes.
func processorTime() (time.Duration, error) {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if err := unix.Getrusage(who, &usage); err != nil {
			return 0, err
		}
		sum += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	return sum, nil
}

// countWrites does a step once more, and counts the kernel's notifications of changes in
// nf_tables: one message for each object that is added, changed or removed. That takes time,
// so it is not part of a measured round. It gives -1 if the messages exceed the buffer.
func countWrites(do func() error) (n int, err error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	const room = 64 << 20
	if s.SetReceiveBufferSize(room, true) != nil {
		// A user namespace does not have this privilege; a small change needs no large buffer.
		_ = s.SetReceiveBufferSize(room, false)
	}
	if err := errors.Join(s.SetReceiveTimeout(&unix.Timeval{Usec: 1000}), do()); err != nil {
		return 0, err
	}
	for {
		messages, _, err := s.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN):
			return n, nil
		case errors.Is(err, unix.ENOBUFS):
			return -1, nil
		case err != nil:
			return 0, err
		}
		for _, m := range messages {
			const endsTransaction = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
			if m.Header.Type != endsTransaction {
				n++
			}
		}
	}
}
