package backends_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/proxy"
)

// With separate commits, a port that the kernel refuses costs one commit: no other one is made
// twice. Without them all ports are committed again and again, in halves.
func TestRefusedPortCostsOneCommit(t *testing.T) {
	d := newDriver(t)
	d.kernel.separate, d.kernel.poisoned = true, true
	var all []*proxy.ServicePort
	for i := range 20 {
		all = append(all, port(i, []int{i}, []int{i, i + 1}))
	}
	all[7] = port(7, []int{7}, []int{7})
	all[7].Cluster[0].Addr = endpointAddr(7, poisonPort)
	err := d.apply(t.Context(), inZone("a", all...))
	if diff := cmp.Diff([]string{portName(7).String()}, failedPorts(err)); diff != "" {
		t.Fatalf("ports that failed (-want +got):\n%s", diff)
	}
	d.kernelHolds(t, d.applied, "after the first Apply")
	if want := len(all) + 1; d.kernel.commits != want { // one for the static objects
		t.Errorf("got %d commits of %d ports, want %d", d.kernel.commits, len(all), want)
	}
}

// Ports between which objects move share a commit, so that no object is removed and made again.
func TestMoveWithSeparateCommits(t *testing.T) {
	d := newDriver(t)
	d.kernel.separate = true
	d.mustApply(t, inZone("a", port(0, []int{0}, []int{0}), port(1, []int{1}, []int{1})))
	before := d.kernel.commits
	d.mustApply(t, inZone("a", port(0, []int{1}, []int{0}), port(1, []int{0}, []int{1})))
	if got := d.kernel.commits - before; got != 1 {
		t.Errorf("move: got %d commits, want 1", got)
	}
	before = d.kernel.commits
	d.mustApply(t, inZone("a", port(0, []int{1}, []int{2}), port(1, []int{0}, []int{3})))
	if got := d.kernel.commits - before; got != 2 {
		t.Errorf("two changes without a move: got %d commits, want 2", got)
	}
}
