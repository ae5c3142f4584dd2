package backendtest

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

// icmp has a probe send echo requests. Nothing tells who answers them.
const icmp v1.Protocol = "ICMP"

// How long probes wait for an answer, which takes less than a millisecond on an
// idle machine.
const (
	// patience is for probes that should be answered: more than a busy
	// machine takes.
	patience = 5 * time.Second
	// impatience is for probes that should not be: enough to notice when
	// they are, as a rule, though not always on a busy machine.
	impatience = 250 * time.Millisecond
)

// probesAtOnce bounds how many probes, with all their tries, run at a time.
const probesAtOnce = 32

// probe says what to send from where to where.
type probe struct {
	from     place
	protocol v1.Protocol // TCP, UDP or icmp
	to       netip.AddrPort
	// source is the address to send from, the kernel's choice if not valid. A
	// port other than 0 allows one try only.
	source netip.AddrPort
	// tries is how many connections are made at the same time, each from a
	// port of its own; 0 stands for 1.
	tries int
	// patience is how long to wait for answers; 0 stands for the constant
	// patience. A test that expects silence shortens it to impatience.
	patience time.Duration
}

func (p *probe) wait() time.Duration { return cmp.Or(p.patience, patience) }

// outcome is what became of a packet.
type outcome int

const (
	// silence: no answer within the patience of the probe.
	silence outcome = iota
	// answered: by a server, or for ICMP by whoever has the address.
	answered
	// refused: with the ICMP message that the port is unreachable, as
	// services without endpoints do. A UDP port that nobody listens on is
	// refused likewise.
	refused
	// reset: by TCP, as a host does where nobody listens.
	reset
	// failed: in any other way.
	failed
)

// reply is what became of one try.
type reply struct {
	outcome outcome
	// by is the name of the server that answered.
	by string
	// client is the address that the server sees the client at, and own its
	// own that it was reached at.
	client, own netip.AddrPort
	// err says more about a failure.
	err error
}

// String gives what is the same for all tries that meet the same fate, and so
// no ports.
func (r reply) String() string {
	switch r.outcome {
	case silence:
		return "silence"
	case refused:
		return "refused"
	case reset:
		return "reset"
	case failed:
		return fmt.Sprintf("failed: %v", r.err)
	case answered:
	}
	if r.by == "" {
		return "answered"
	}
	return fmt.Sprintf("%s sees %v", r.by, r.client.Addr())
}

// summary gives the different fates of tries, sorted.
func summary(replies []reply) []string {
	var all []string
	for _, r := range replies {
		all = append(all, r.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// probe makes the tries of a probe and gives a reply for each. The error is for
// what hindered the probe itself, such as a source address that the place does
// not have.
func (b *testbed) probe(ctx context.Context, p probe) ([]reply, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	flows, err := b.open(&p)
	if err != nil {
		return nil, err
	}
	replies := askAll(flows)
	for _, f := range flows {
		f.Close()
	}
	return replies, nil
}

// probeAll makes many probes, several at the same time, and gives the replies
// of each in the order of the probes.
func (b *testbed) probeAll(ctx context.Context, probes []probe) ([][]reply, error) {
	replies, errs := make([][]reply, len(probes)), make([]error, len(probes))
	slots := make(chan struct{}, probesAtOnce)
	var wg sync.WaitGroup
	for i, p := range probes {
		slots <- struct{}{}
		wg.Go(func() {
			replies[i], errs[i] = b.probe(ctx, p)
			<-slots
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("probe from %s to %v/%s: %w", probes[i].from, probes[i].to, probes[i].protocol, err)
		}
	}
	return replies, nil
}
