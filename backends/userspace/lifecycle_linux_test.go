package userspace_test

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/proxy"
)

// descriptors counts what the process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// A backend that is closed leaves nothing open, however often it was taken up and
// cleaned up before, or could not begin.
func TestNothingStaysOpen(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
		// What is lost is not to be found and closed by the collector of garbage.
		runtime.GC()
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		const times = 10
		before := descriptors(t)
		for range times {
			n.beginsAndEnds(t, c)
		}
		eventually(t, "everything is closed", func() bool { return descriptors(t) < before+times })
	})
}

// beginsAndEnds makes a backend do all that it can, and closes it.
func (n network) beginsAndEnds(t *testing.T, c userspace.Capture) {
	t.Helper()
	var b *userspace.Backend
	if err := n.node.Do(func() (err error) {
		b, err = userspace.New(userspace.Options{Capture: c})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	taken, err := n.node.ListenPacket(t.Context(), "udp4", "0.0.0.0:16421")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("with the port taken: got error %v, want %v", err, syscall.EADDRINUSE)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	apply(t, b, snapshot(one))
	if err := b.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !b.Drifted(t.Context()) {
		t.Error("a backend that has cleaned up says that all is as it should be")
	}
	apply(t, b, snapshot(one))
	for range 2 { // the second time is no error either
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A closed backend does nothing any more, and says so.
func TestClosedBackends(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
		b := n.start(t, userspace.Options{Capture: c})
		apply(t, b, snapshot(one))
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if !b.Drifted(t.Context()) {
			t.Error("a closed backend says that all is as it should be")
		}
		for what, err := range map[string]error{"Apply": b.Apply(t.Context(), proxy.Snapshot{}, snapshot(one)), "Cleanup": b.Cleanup(t.Context())} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: got error %v, want %v", what, err, net.ErrClosed)
			}
		}
	})
}

// An Apply that is cancelled before it begins takes nothing from others.
func TestCancelledApplyTakesNothing(t *testing.T) {
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

// What the caller does to his options later is none of the backend's business.
func TestOptionsAreCopied(t *testing.T) {
	n := newNetwork(t)
	n.serve(t, podServer)
	families := []v1.IPFamily{v1.IPv4Protocol}
	b := n.start(t, userspace.Options{Families: families})
	families[0] = v1.IPv6Protocol
	apply(t, b, snapshot(one))
	n.wantAnswer(t, one)
}

// faulty gives a backend whose commits go through what the pointer says.
func (n network) faulty(t *testing.T, c userspace.Capture, around *func(commit func() error) error) *userspace.Backend {
	t.Helper()
	return netnstest.Open(t, n.node, func() (*userspace.Backend, error) {
		return userspace.NewFaulty(userspace.Options{Capture: c}, func(commit func() error) error { return (*around)(commit) })
	})
}

// What is new is carried as soon as the kernel leads it here, and what has failed goes
// on as before.
func TestWhatIsCarriedMeanwhile(t *testing.T) {
	forCaptures(t, func(t *testing.T, c userspace.Capture) {
		n := newNetwork(t)
		n.needs(t, c)
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
		wants("when nobody knows what there is", two, other)
	})
}

// withFrontend gives service ports one more frontend.
func withFrontend(s proxy.Snapshot, at string) proxy.Snapshot {
	var ports []*proxy.ServicePort
	more := firstOf(snapshot(at)).Frontends
	for p := range s.All() {
		p := *p
		p.Frontends = append(append([]proxy.Frontend(nil), p.Frontends...), more...)
		ports = append(ports, &p)
	}
	return proxy.NewSnapshot(s.Node(), ports...)
}

// firstOf gives the first service port of a snapshot.
func firstOf(s proxy.Snapshot) *proxy.ServicePort {
	for p := range s.All() {
		return p
	}
	return nil
}
