package backendtest

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

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
	from     cluster.Name
	protocol v1.Protocol // TCP, UDP, SCTP or lab.ICMP
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

// summary returns the different outcomes of tries, sorted.
func summary(replies []lab.Reply) []string {
	var all []string
	for _, r := range replies {
		all = append(all, r.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// probe makes the tries of a probe and returns a reply for each. The error is that of
// the probe itself, such as for a source address that the host does not have.
func (b *testbed) probe(ctx context.Context, p probe) ([]lab.Reply, error) {
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
	replies := lab.AskAll(ctx, flows)
	for _, f := range flows {
		f.Close()
	}
	if p.wait() == patience && slices.ContainsFunc(replies, func(r lab.Reply) bool { return r.Outcome == lab.Silence }) {
		b.lost.Store(true)
	}
	return replies, nil
}

// open makes the connections of a probe, without waiting for any answer.
// The caller closes the flows.
func (b *testbed) open(p *probe) ([]*lab.Flow, error) {
	h := b.host(p.from)
	if h == nil {
		return nil, fmt.Errorf("the testbed has no host %q", p.from)
	}
	at := *p
	if p.protocol == v1.ProtocolSCTP && !p.source.IsValid() {
		// A socket without address would offer all addresses of the host to the server.
		at.source = b.packet(flight{p.from, p.to, p.protocol}).Source
	}
	var flows []*lab.Flow
	err := h.ns.Do(func() error {
		for range max(p.tries, 1) {
			f, err := lab.OpenFlow(at.protocol, at.source, at.to, h.sourcePort)
			if err != nil {
				return err
			}
			f.Patience = at.wait()
			flows = append(flows, f)
		}
		return nil
	})
	if err != nil {
		for _, f := range flows {
			f.Close()
		}
		return nil, err
	}
	return flows, nil
}

// probeAll makes many probes, several at the same time, and returns the replies
// of each in the order of the probes.
func (b *testbed) probeAll(ctx context.Context, probes []probe) ([][]lab.Reply, error) {
	replies := make([][]lab.Reply, len(probes))
	err := testenv.Each(len(probes), probesAtOnce, func(i int) (err error) {
		p := probes[i]
		if replies[i], err = b.probe(ctx, p); err != nil {
			return fmt.Errorf("probe from %s to %v/%s: %w", p.from, p.to, p.protocol, err)
		}
		return nil
	})
	return replies, err
}
