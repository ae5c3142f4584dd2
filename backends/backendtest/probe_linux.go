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

// icmp makes a probe send echo requests. Their answers have no name of a server.
const icmp v1.Protocol = "ICMP"

// How long probes wait for an answer, which takes less than a millisecond on an
// idle machine.
const (
	// patience is for probes that should be answered: more than a busy machine needs, or one
	// that QEMU emulates, where answers by backends/userspace took more than 5 s.
	patience = 20 * time.Second
	// shortPatience is for probes that should not be answered: enough to notice an
	// answer usually, but not always on a busy machine.
	shortPatience = 250 * time.Millisecond
	// longPatience is for connections that some endpoints answer and others do not: nearly until
	// TCP sends its first packet again, to which another endpoint may answer.
	longPatience = 900 * time.Millisecond
)

// probesAtOnce is how many probes, with all their tries, run at a time at most.
const probesAtOnce = 32

// probe is what to send, with source and destination.
type probe struct {
	from     hostName
	protocol v1.Protocol // TCP, UDP, SCTP or icmp
	to       netip.AddrPort
	// source is the address to send from; the kernel chooses it if it is not valid. A
	// port other than 0 allows one try only.
	source netip.AddrPort
	// tries is how many connections are made at the same time, each from a
	// port of its own; 0 means 1.
	tries int
	// patience is how long to wait for answers; 0 means the constant patience. A
	// test that expects silence sets shortPatience.
	patience time.Duration
}

func (p *probe) wait() time.Duration { return cmp.Or(p.patience, patience) }

// outcome is what happened to a packet.
type outcome int

const (
	// silence: no answer within the patience of the probe.
	silence outcome = iota
	// answered: by a server, or for ICMP by the host with the address.
	answered
	// refused: with the ICMP message that the port is unreachable, as of
	// Services without endpoints. A UDP port without socket is refused in
	// the same way.
	refused
	// reset: by TCP, as of a host without listener.
	reset
	// failed: in any other way.
	failed
)

// reply is the result of one try.
type reply struct {
	outcome outcome
	// by is the name of the server that answered.
	by string
	// client is the address at which the server sees the client, and own the
	// server's address that the client used.
	client, own netip.AddrPort
	// err says more about a failure.
	err error
}

// String returns a text that is equal for all tries with the same outcome: it has no ports.
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

// summary returns the different outcomes of tries, sorted.
func summary(replies []reply) []string {
	var all []string
	for _, r := range replies {
		all = append(all, r.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// probe makes the tries of a probe and returns a reply for each. The error is that of
// the probe itself, such as for a source address that the host does not have.
func (b *testbed) probe(ctx context.Context, p probe) ([]reply, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if b.lost.Load() { // The next missing answers fail the test sooner.
		p.patience = min(p.wait(), longPatience)
	}
	flows, err := b.open(&p)
	if err != nil {
		return nil, err
	}
	replies := askAll(flows)
	for _, f := range flows {
		f.Close()
	}
	if p.wait() == patience && slices.ContainsFunc(replies, func(r reply) bool { return r.outcome == silence }) {
		b.lost.Store(true)
	}
	return replies, nil
}

// probeAll makes many probes, several at the same time, and returns the replies
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
