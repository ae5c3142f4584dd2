//go:build ipvs

package ipvs

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The backend changes from any size to any other, with other changes and with faults.
func TestGrowth(t *testing.T) {
	s := newStage(t, Options{})
	d := &stagetest.Disturbance{
		Unknown:  lost(errors.New("no answer")),
		Refusals: []error{context.DeadlineExceeded, explain(unix.ENOMEM), explain(unix.EEXIST), explain(unix.EINVAL)},
		Flush: func() {
			s.run(t, "ipvsadm -C")
			s.run(t, "ipset flush")
		},
	}
	var last *backend
	stagetest.Growth{
		Sizes: []int{0, 1, 2, 3, 17, 300, 3000},
		Steps: 16,
		New: func() (b proxy.Backend, err error) {
			if last != nil {
				err = last.Close()
			}
			if err == nil {
				err = s.NS.Do(func() (err error) {
					last, err = newFaulty(s.Options, d.Around)
					return err
				})
			}
			if err == nil {
				closing := last
				t.Cleanup(func() { _ = closing.Close() })
			}
			return last, err
		},
		Fault: d.Set,
		Dump:  func() string { return s.dump(t) },
		Fresh: func(want proxy.Snapshot) string {
			fresh := newStage(t, Options{})
			fresh.Apply(t, want)
			return fresh.dump(t)
		},
	}.Run(t, testenv.Random(t))
	if d.Met == 0 {
		t.Error("failed commits: got none, want some")
	}
}

// An endpoint that is replaced costs two operations among 20,000 Services as among one. Adding and removing them leaves nothing behind.
func TestManyServices(t *testing.T) {
	s := newStage(t, Options{Families: []v1.IPFamily{v1.IPv4Protocol}, DrainTimeout: -1})
	const services = 20_000
	ports := make([]*proxy.ServicePort, services)
	for i := range ports {
		ports[i] = stagetest.Port(v1.IPv4Protocol, i, 1)
	}
	for _, n := range []int{1, services, 1} {
		s.Apply(t, snapshotOf(ports[:n]...))
		changed := *ports[0]
		changed.Cluster = stagetest.Port(v1.IPv4Protocol, 0, 2).Cluster[1:]
		operations := s.Operations(t)
		next := s.Applied.Revert(snapshotOf(&changed), changed.Name)
		s.Apply(t, next)
		if got := s.Operations(t) - operations; got != 2 {
			t.Errorf("%d Services, an endpoint replaced: got %d operations, want 2", n, got)
		}
		s.Apply(t, s.Applied.Revert(snapshotOf(ports[0]), changed.Name))
	}
	s.isAsFresh(t, "after 20,000 Services")
}
