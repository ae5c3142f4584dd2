package stagetest

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// DisturbNFT returns the faults of all backends that use nf_tables: errors of the kernel for
// a transaction, a lost reply, and a flush by another program.
func DisturbNFT(flush func()) *Disturbance {
	d := &Disturbance{Unknown: nfnetlink.ErrUnknownOutcome, Flush: flush, Refusals: []error{context.DeadlineExceeded}}
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.ENOBUFS, unix.EEXIST, unix.EBUSY, unix.ENFILE, unix.EINVAL} {
		d.Refusals = append(d.Refusals, &nfnetlink.Error{Errno: errno, Op: "add element"})
	}
	return d
}

// Limit makes the transactions of a connection use Around, and limits their size in bytes;
// zero leaves that to the kernel.
func (d *Disturbance) Limit(c *nft.Conn, bytes int) {
	c.Netlink.LimitBatch(bytes)
	transact := c.Transact
	c.Transact = func(ctx context.Context, b *nfnetlink.Batch) error {
		return d.Around(func() error { return transact(ctx, b) })
	}
}

// RunRefusals has the kernel refuse every transaction of a backend of nf_tables for a reason
// that no single service port gives: everything stays.
func (g Growth) RunRefusals(t *testing.T, d *Disturbance) {
	t.Helper()
	const ports = 8
	forwards, rejects := make([]*proxy.ServicePort, ports), make([]*proxy.ServicePort, ports)
	for i := range ports {
		forwards[i], rejects[i] = Port(v1.IPv4Protocol, 10+i, 2), Port(v1.IPv4Protocol, 10+i, 0)
		f := &rejects[i].Frontends[0]
		f.FromInside, f.FromOutside = proxy.TrafficRoute{Action: proxy.Reject}, proxy.TrafficRoute{Action: proxy.Reject}
	}
	x := refusals{g, d, proxy.NewSnapshot(Node(), forwards...), proxy.NewSnapshot(Node(), rejects...)}
	for _, c := range []refusal{
		{"no rights", unix.EPERM, x.old, backends.ErrUnavailable, 1},
		{"no rights, a restart", unix.EPERM, proxy.Snapshot{}, backends.ErrUnavailable, 1},
		{"no memory, a restart", unix.ENOMEM, proxy.Snapshot{}, nil, 0},
		{"no buffers, a restart", unix.ENOBUFS, proxy.Snapshot{}, nil, 0},
	} {
		x.run(t, c)
	}
}

// refusals go from old to next.
type refusals struct {
	Growth
	disturbance *Disturbance
	old, next   proxy.Snapshot
}

type refusal struct {
	name  string
	errno unix.Errno
	// known is the snapshot that the refused Apply starts from.
	known proxy.Snapshot
	want  error // nil for the errno of each port
	// most limits the number of transactions that are tried; zero means any number.
	most int
}

// reason returns what the error must be.
func (c *refusal) reason() error {
	if c.want != nil {
		return c.want
	}
	return c.errno
}

func (x *refusals) run(t *testing.T, c refusal) {
	t.Helper()
	b := x.start(t)
	apply(t, b, proxy.Snapshot{}, x.old)
	before := x.Dump()
	if c.known.IsZero() {
		b = x.start(t)
	}
	d := x.disturbance
	d.Always, d.Met = &nfnetlink.Error{Errno: c.errno, Op: "add element"}, 0
	err := b.Apply(t.Context(), c.known, x.next)
	d.Always = nil
	failed, named := errors.AsType[proxy.PortErrors](err)
	whole := !named && errors.Is(err, backends.ErrUnavailable)
	if !errors.Is(err, c.reason()) || !whole && (c.want != nil || len(failed) != x.next.Len()) {
		t.Errorf("%s: got error %v, want %v that names no service port, or for a shortage each one", c.name, err, c.want)
	}
	if d.Met == 0 || c.most > 0 && d.Met > c.most {
		t.Errorf("%s: %d transactions were tried, want %d (0: any number)", c.name, d.Met, c.most)
	}
	if diff := cmp.Diff(before, x.Dump()); diff != "" {
		t.Errorf("%s: objects in the kernel (-before +after):\n%s", c.name, diff)
	}
	apply(t, b, c.known, x.next)
}

func (x *refusals) start(t *testing.T) proxy.Backend {
	t.Helper()
	b, err := x.New()
	testenv.NoError(t, err)
	return b
}

func apply(t *testing.T, b proxy.Backend, old, next proxy.Snapshot) {
	t.Helper()
	if err := b.Apply(t.Context(), old, next); err != nil {
		t.Fatalf("Apply without a fault: got error %v, want none", err)
	}
}
