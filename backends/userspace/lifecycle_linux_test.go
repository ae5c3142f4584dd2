package userspace_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A closed backend leaves no descriptor open, also after Apply has failed, and after Cleanup.
func TestCloseFreesDescriptors(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		// The garbage collector must not close descriptors that the backend has lost.
		runtime.GC()
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		const times = 10
		before := stagetest.Descriptors(t)
		for range times {
			n.useAndClose(t, c)
		}
		eventually(t, "all descriptors are closed", func() bool { return stagetest.Descriptors(t) < before+times })
	})
}

// useAndClose calls the methods of a backend, and closes it.
func (n network) useAndClose(t *testing.T, c userspace.Capture) {
	t.Helper()
	var b *userspace.Backend
	if err := n.node.Do(func() (err error) {
		b, err = userspace.New(userspace.Options{Capture: c})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	taken, err := n.node.ListenPacket(t.Context(), "udp4", "0.0.0.0:16421")
	testenv.NoError(t, err)
	if err := b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("with the port in use: got error %v, want %v", err, syscall.EADDRINUSE)
	}
	testenv.NoError(t, taken.Close())
	apply(t, b, snapshot(one))
	testenv.NoError(t, b.Cleanup(t.Context()))
	if !b.Drifted(t.Context()) {
		t.Error("Drifted after Cleanup: got false, want true")
	}
	apply(t, b, snapshot(one))
	for range 2 { // closing again is no error
		testenv.NoError(t, b.Close())
	}
}

// Methods of a closed backend return net.ErrClosed.
func TestClosedBackends(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, snapshot(one))
		testenv.NoError(t, b.Close())
		if !b.Drifted(t.Context()) {
			t.Error("Drifted after Close: got false, want true")
		}
		for what, err := range map[string]error{"Apply": b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one)), "Cleanup": b.Cleanup(t.Context())} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: got error %v, want %v", what, err, net.ErrClosed)
			}
		}
	})
}

// If the context has ended before Apply, Apply opens no listener, so that another backend can.
func TestCancelledApplyOpensNoListener(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.start(t, userspace.Options{}).Apply(ctx, proxy.Snapshot{}, snapshot(one)); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
	apply(t, n.start(t, userspace.Options{}), snapshot(one))
	n.wantAnswer(t, one)
}

// Changes of the caller's options after New have no effect.
func TestOptionsAreCopied(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.serve(t, podServer)
	families := []v1.IPFamily{v1.IPv4Protocol}
	b := n.start(t, userspace.Options{Families: families})
	families[0] = v1.IPv6Protocol
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
}

// faulty returns a backend whose commits pass through the function that the pointer refers to.
func (n network) faulty(t *testing.T, c userspace.Capture, around *func(commit func() error) error) *userspace.Backend {
	t.Helper()
	return netnstest.Open(t, n.node, func() (*userspace.Backend, error) {
		return userspace.NewFaulty(userspace.Options{Capture: c}, func(commit func() error) error { return (*around)(commit) })
	})
}

// The engine serves the new snapshot before the commit is over, and the old one after a commit
// has failed.
func TestServedSnapshotDuringApply(t *testing.T) {
	t.Parallel()
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		const other = podAddr + ":8081"
		n.serve(t, podServer)
		n.serve(t, other)
		wants := func(when, to, server string) {
			t.Helper()
			if got, _, _, err := n.ask(t, to); err != nil || got != server {
				t.Errorf("%s: at %s: got %q and error %v, want an answer of %s", when, to, got, err, server)
			}
		}
		broken := errors.New("broken")
		fails := func(func() error) error { return broken }
		around := func(commit func() error) error {
			err := commit()
			wants("before the commit is over", one, podServer)
			return err
		}
		b := n.faulty(t, c, &around)
		first := snapshot(one)
		apply(t, b, first)

		around = fails
		next := withFrontend(withEndpoint(first, other), two)
		if err := b.Apply(t.Context(), first, next); !errors.Is(err, broken) {
			t.Errorf("got error %v, want %v", err, broken)
		}
		wants("after a commit of one port that failed", one, podServer)

		node := *first.Node()
		node.NodePorts.All, node.LocalTraffic.Interface = true, "nobody"
		if err := b.Apply(t.Context(), first, withNode(next, &node)); !errors.Is(err, broken) {
			t.Errorf("got error %v, want %v", err, broken)
		}
		wants("after a commit of the node that failed", one, podServer)

		around = func(commit func() error) error { return errors.Join(commit(), proxy.ErrDataplaneLost) }
		if err := b.Apply(t.Context(), first, next); !errors.Is(err, proxy.ErrDataplaneLost) {
			t.Errorf("got error %v, want %v", err, proxy.ErrDataplaneLost)
		}
		wants("after the dataplane was lost", two, other)
	})
}

// withFrontend adds a frontend to all service ports.
func withFrontend(s proxy.Snapshot, at string) proxy.Snapshot {
	return snapshots.EachWith(s, func(p *proxy.ServicePort) { p.Frontends = append(p.Frontends, firstOf(snapshot(at)).Frontends...) })
}

// firstOf returns the first service port of a snapshot.
func firstOf(s proxy.Snapshot) *proxy.ServicePort {
	for p := range s.All() {
		return p
	}
	return nil
}
