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
	old, next := proxy.NewSnapshot(Node(), forwards...), proxy.NewSnapshot(Node(), rejects...)
	for _, c := range []struct {
		name  string
		errno unix.Errno
		known proxy.Snapshot // from which the refused Apply starts
	}{
		{"no rights", unix.EPERM, old},
		{"no rights, a restart", unix.EPERM, proxy.Snapshot{}},
		{"no memory, a restart", unix.ENOMEM, proxy.Snapshot{}},
		{"no buffers, a restart", unix.ENOBUFS, proxy.Snapshot{}},
	} {
		b := g.open(t)
		apply(t, b, proxy.Snapshot{}, old)
		before := g.Dump()
		if c.known.IsZero() {
			b = g.open(t)
		}
		d.Always, d.Met = &nfnetlink.Error{Errno: c.errno, Op: "add element"}, 0
		err := b.Apply(t.Context(), c.known, next)
		d.Always = nil
		failed, named := errors.AsType[proxy.PortErrors](err)
		unavailable := !named && errors.Is(err, backends.ErrUnavailable)
		switch {
		case c.errno == unix.EPERM && (!unavailable || d.Met != 1):
			t.Errorf("%s: got error %v after %d transactions, want %v that names no service port after 1", c.name, err, d.Met, backends.ErrUnavailable)
		case c.errno != unix.EPERM && (!errors.Is(err, c.errno) || !unavailable && len(failed) != next.Len()):
			t.Errorf("%s: got error %v, want %v of all service ports or of none", c.name, err, c.errno)
		}
		if diff := cmp.Diff(before, g.Dump()); diff != "" {
			t.Errorf("%s: objects in the kernel (-before +after):\n%s", c.name, diff)
		}
		apply(t, b, c.known, next)
	}
}

func (g Growth) open(t *testing.T) proxy.Backend {
	t.Helper()
	b, err := g.New()
	testenv.NoError(t, err)
	return b
}

func apply(t *testing.T, b proxy.Backend, old, next proxy.Snapshot) {
	t.Helper()
	if err := b.Apply(t.Context(), old, next); err != nil {
		t.Fatalf("Apply without a fault: got error %v, want none", err)
	}
}
