//go:build ipvs

package ipvs

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// When another backend has taken over, Cleanup lets the open connections of clients go on, and
// fails until they have ended; new ones use the other backend. It needs no earlier Apply.
func TestDrainForAnotherBackend(t *testing.T) {
	d := newDrainStage(t, drainServices(), nil)
	var other proxy.Backend
	err := d.NS.Do(func() (err error) {
		other, err = nftables.New(nftables.Options{})
		return err
	})
	testenv.NoError(t, err)
	testenv.NoError(t, other.Apply(t.Context(), proxy.Snapshot{}, snapshotOf(d.both)))
	d.open.asks(t, "while both serve", d.Hosts[0])
	var until uint32
	for _, when := range []string{"after the first Cleanup", "after the second Cleanup"} {
		d.restart(t)
		if err := d.Backend.Cleanup(t.Context()); !errors.Is(err, ErrDraining) {
			t.Fatalf("%s: got error %v, want %v", when, err, ErrDraining)
		}
		now := d.drains(t, when)
		if until != 0 && now != until {
			t.Errorf("%s: deadline: got %d, want %d as before", when, now, until)
		}
		until = now
		d.open.asks(t, when, d.Hosts[0])
		d.openTo(t, "tcp", d.vip, d.Hosts[1]).reset()
	}
	next := d.openTo(t, "tcp", d.vip, d.Hosts[0])
	d.open.reset()
	await(t, "the end of Cleanup", func() bool {
		d.restart(t)
		return d.Backend.Cleanup(t.Context()) == nil
	})
	if got := d.run(t, "ipvsadm -Sn") + d.run(t, "ipset save"); got != "" {
		t.Errorf("after Cleanup, in the kernel: got %q, want nothing", got)
	}
	next.asks(t, "after Cleanup", d.Hosts[0])
	d.openTo(t, "tcp", d.vip, d.Hosts[1]).reset()
}

// A deadline ends Cleanup's patience, and without the device there is nothing to wait for.
func TestCleanupAtTheDeadline(t *testing.T) {
	d := newDrainStage(t, Options{DrainServices: true, DrainTimeout: 3 * time.Second}, nil)
	if err := d.Backend.Cleanup(t.Context()); !errors.Is(err, ErrDraining) {
		t.Errorf("Cleanup: got error %v, want %v", err, ErrDraining)
	}
	await(t, "the end of Cleanup", func() bool { return d.Backend.Cleanup(t.Context()) == nil })
	if err := d.Backend.Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup of nothing: %v", err)
	}
}

// Cleanup removes virtual servers before the rules that protect them, and nothing if it cannot list
// them: by the sets, another Cleanup finds those that somebody has edited.
func TestCleanupRemovesServersFirst(t *testing.T) {
	path := netnstest.OwnXtablesLock(t)
	s := newStage(t, Options{Flavour: Legacy, LockWait: time.Second})
	s.Apply(t, snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2), localPort(1)))
	s.restart(t)
	before := s.kernelHas(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Backend.Cleanup(ended); err == nil {
		t.Error("Cleanup with an ended context: got no error")
	}
	if diff := cmp.Diff(before, s.kernelHas(t)); diff != "" {
		t.Errorf("after a Cleanup that failed (-before +after):\n%s", diff)
	}
	held, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, held)
	testenv.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	if err := s.Backend.Cleanup(t.Context()); !errors.Is(err, xtables.ErrLocked) {
		t.Errorf("Cleanup while the lock is held: got error %v, want %v", err, xtables.ErrLocked)
	}
	if servers, rules := s.run(t, "ipvsadm -Sn"), s.run(t, "iptables-legacy-save"); servers != "" || !strings.Contains(rules, "VIPKIT-IPVS-INPUT") {
		t.Errorf("while the rules cannot be removed: got virtual servers %q and rules %q, want no servers, and the rules", servers, rules)
	}
	testenv.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_UN))
	if err := s.Backend.Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
}
