package sidebyside

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/backends/iptables"
)

// dataplane takes API objects, and has written what follows from them when a call
// returns.
type dataplane interface {
	load(w *world) error
	update(old, now *discoveryv1.EndpointSlice) error
	add(s *v1.Service, slice *discoveryv1.EndpointSlice) error
}

// contenders are those who are compared, by name.
func contenders() map[string]func() (dataplane, error) {
	return map[string]func() (dataplane, error){
		"vipkit nftables":             newNFTables,
		"kube-proxy nftables":         func() (dataplane, error) { return newKubeNFTables(true) },
		"kube-proxy nftables, by nft": func() (dataplane, error) { return newKubeNFTables(false) },
		"vipkit iptables-legacy":      func() (dataplane, error) { return newIPTables(iptables.Legacy) },
		"kube-proxy iptables-legacy":  newKubeIPTables,
		"vipkit iptables-nft":         func() (dataplane, error) { return newIPTables(iptables.NFT) },
		"kube-proxy iptables-nft":     newKubeIPTables,
	}
}

// cost is what one step takes.
type cost struct {
	// Wall is how long it takes, CPU the time of processors, user and system, that of
	// programs which it starts included.
	Wall, CPU time.Duration
	// Writes is how many objects of nf_tables it changes in the kernel; -1 where that
	// was not counted.
	Writes int
}

// steps are what is measured, in this order.
func steps() []string { return []string{"cold", "endpoint", "service", "nothing", "restart"} }

// measure goes through all steps with one contender.
func measure(name string, services int) (map[string]cost, error) {
	start := contenders()[name]
	if start == nil {
		return nil, fmt.Errorf("there is no contender %q", name)
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
	for _, step := range []struct {
		name   string
		rounds int
		counts bool
		do     func() error
	}{
		{"cold", 1, false, fresh},
		{"endpoint", 5, true, func() error { old, now := w.replace(services / 2); return d.update(old, now) }},
		{"service", 5, true, func() error { return d.add(w.add()) }},
		{"nothing", 5, true, func() error { old, now := w.annotate(services / 3); return d.update(old, now) }},
		{"restart", 1, true, fresh},
	} {
		c, err := repeat(step.rounds, step.do)
		if err == nil && step.counts {
			c.Writes, err = countWrites(step.do)
		}
		if err != nil {
			return nil, fmt.Errorf("%s, %d services, %s: %w", name, services, step.name, err)
		}
		costs[step.name] = c
	}
	return costs, nil
}

// repeat measures a step several times, and gives the median of each time.
func repeat(rounds int, do func() error) (cost, error) {
	var all []cost
	for range rounds {
		c, err := once(do)
		if err != nil {
			return cost{}, err
		}
		all = append(all, c)
	}
	out := cost{Writes: -1}
	slices.SortFunc(all, func(a, b cost) int { return int(a.Wall - b.Wall) })
	out.Wall = all[len(all)/2].Wall
	slices.SortFunc(all, func(a, b cost) int { return int(a.CPU - b.CPU) })
	out.CPU = all[len(all)/2].CPU
	return out, nil
}

func once(do func() error) (cost, error) {
	runtime.GC() // The garbage of others is not this step's.
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

// processorTime gives that of this process and of those that it has waited for.
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

// countWrites does a step once more, and counts what the kernel tells of changes in
// nf_tables: one message for each object that is made, changed or removed. That takes
// time, so it is not in the round that is measured. It gives -1 where the kernel had
// more to tell than there is room for.
func countWrites(do func() error) (n int, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	const room = 64 << 20
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room); err != nil {
		// A user namespace has no such privilege; a change needs little room.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	buffer := make([]byte, 1<<20)
	for {
		size, _, err := unix.Recvfrom(fd, buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return n, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			return -1, nil
		case err != nil:
			return 0, err
		}
		n += objects(buffer[:size])
	}
}

// objects counts the messages in a buffer but those that only end a transaction.
func objects(buffer []byte) (n int) {
	const newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	for len(buffer) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(buffer))
		if length < unix.SizeofNlMsghdr || length > len(buffer) {
			return n
		}
		if binary.NativeEndian.Uint16(buffer[4:]) != newGeneration {
			n++
		}
		buffer = buffer[min(len(buffer), (length+3)&^3):]
	}
	return n
}
