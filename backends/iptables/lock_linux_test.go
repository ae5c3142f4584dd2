package iptables

import (
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/proxy"
)

// lockSecond is the script of a stub that acquires the lock after the first of several tables
// was committed, and holds it until iptables-restore gives up waiting for the second one.
const lockSecond = `script=$(cat); rm $flag; >$flag.held
	{ echo "$script" | sed '/^COMMIT/q'
	  until ${real%restore}save -t filter | grep -q 'has no endpoints'; do sleep 0.01; done
	  flock $XTABLES_LOCKFILE sh -c 'echo "$1" | sed "1,/^COMMIT/d"; while [ -e "$2" ]; do sleep 0.01; done' sh "$script" $flag.held
	} | { $real "$@"; status=$?; rm $flag.held; exit $status; }
	exit $?`

// iptables acquires the lock for each table. If it gets the lock only for the first one, a
// part of the change was made, and the backend reports that the dataplane is lost.
func TestLockBetweenTables(t *testing.T) {
	netnstest.OwnXtablesLock(t)
	s := newStage(t, Options{Flavour: Legacy, LockWait: time.Second, Families: []v1.IPFamily{v1.IPv4Protocol}})
	flag, _ := failing(t, s, lockSecond)
	full, empty, other := newPort(v1.IPv4Protocol, 0, 2), newPort(v1.IPv4Protocol, 0, 0), newPort(v1.IPv4Protocol, 1, 1)
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), full, other))
	before := s.dump(t)
	setFlag(t, flag)
	next := proxy.NewSnapshot(stagetest.Node(), empty, other)
	err := s.Backend.Apply(t.Context(), s.Applied, next)
	if !errors.Is(err, ErrLocked) || s.dump(t) == before {
		t.Fatalf("Apply: got error %v, want %v and a part of the change", err, ErrLocked)
	}
	if !errors.Is(err, proxy.ErrDataplaneLost) || errors.As(err, new(proxy.PortErrors)) {
		t.Errorf("Apply: got error %v, want %v and no PortErrors", err, proxy.ErrDataplaneLost)
	}
	s.Applied = proxy.Snapshot{}
	s.Apply(t, next)
	s.holds(t, next, "after the lock was released")
	last := proxy.NewSnapshot(stagetest.Node(), other)
	s.Apply(t, last)
	s.holds(t, last, "after a change")
}

func TestClose(t *testing.T) {
	for _, f := range flavours() {
		t.Run(string(f), func(t *testing.T) {
			NeedPrograms(t, Options{Flavour: f})
			stagetest.RunClose(t, Options{Flavour: f}, New)
		})
	}
}
