package proxy

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/objects"
)

// contender is one of many Services that claim the same external IPs at the same
// ports. The lower its number, the older it is.
func contender(i, addrCount, portCount int, edits ...edit) *v1.Service {
	list := objects.Many(portCount, func(p int) string { return fmt.Sprintf("p%d %d", p, 1000+p) })
	clusterIP := netip.AddrFrom4([4]byte{10, 96, byte(i / 250), byte(1 + i%250)}).String()
	all := []edit{objects.Ports(list...), objects.ExternalIPs(claimed(addrCount)...), objects.Created(int64(1000 + i))}
	return apiService(contenderName(i), clusterIP, append(all, edits...)...)
}

// claimed returns addresses that several Services claim.
func claimed(n int) []string {
	return objects.Many(n, func(i int) string { return fmt.Sprintf("198.51.%d.%d", i/250, 1+i%250) })
}

func contenderName(i int) string { return fmt.Sprintf("s%04d", i) }

// contendersTracker returns a tracker with count contenders for 30 addresses at 3 ports.
func contendersTracker(tb testing.TB, count int) *ServiceChangeTracker {
	tb.Helper()
	tr := newTestTracker()
	for i := 1; i <= count; i++ {
		tr.UpdateService(contender(i, 30, 3))
	}
	newest(tb, tr)
	return tr
}

// contestEvent is a change among contenders, the number of ports that it affects, and its
// reverse.
type contestEvent struct {
	name     string
	ports    int
	do, undo func(*ServiceChangeTracker)
}

func contestEvents() []contestEvent {
	with := func(i int, edits ...edit) func(*ServiceChangeTracker) {
		s := contender(i, 30, 3, edits...)
		return func(tr *ServiceChangeTracker) { tr.UpdateService(s) }
	}
	without := func(i int) func(*ServiceChangeTracker) {
		return func(tr *ServiceChangeTracker) { tr.DeleteService(objectName(contenderName(i))) }
	}
	return []contestEvent{
		{"owner is removed", 3, without(1), with(1)},
		{"owner becomes younger", 6, with(1, objects.Created(9999)), with(1)},
		{"owner moves", 6, with(1, objects.ExternalIPs("203.0.113.1")), with(1)},
		{"owner drops one address", 6, with(1, func(s *v1.Service) { s.Spec.ExternalIPs = s.Spec.ExternalIPs[:29] }), with(1)},
		{"owner changes a port", 4, with(1, func(s *v1.Service) { s.Spec.Ports[1].Port = 999 }), with(1)},
		{"owner changes otherwise", 3, with(1, objects.InternalLocal), with(1)},
		{"older Service is added", 6, with(0), without(0)},
		{"loser becomes older", 6, with(30, objects.Created(1)), with(30)},
		{"loser is removed", 0, without(30), with(30)},
		{"loser changes otherwise", 3, with(30, objects.InternalLocal), with(30)},
	}
}

// TestEventConcernsTwoOwners: the cost of an event does not grow with the number of
// Services that claim the same addresses.
func TestEventConcernsTwoOwners(t *testing.T) {
	few, many := contendersTracker(t, 50), contendersTracker(t, 400)
	for _, e := range contestEvents() {
		cost := func(tr *ServiceChangeTracker) float64 {
			e.do(tr)
			if got := len(tr.dirty); got != e.ports {
				t.Errorf("%s, %d Services: got %d ports to resolve, want %d", e.name, len(tr.services), got, e.ports)
			}
			newest(t, tr)
			e.undo(tr)
			newest(t, tr)
			return testing.AllocsPerRun(5, func() { e.do(tr); newest(t, tr); e.undo(tr); newest(t, tr) })
		}
		small, large := cost(few), cost(many)
		t.Logf("%s: %v allocations with 50 Services, %v with 400", e.name, small, large)
		if large > small+100 {
			t.Errorf("%s: got %v allocations with 400 Services and %v with 50, want at most 100 more", e.name, large, small)
		}
	}
}

// TestEveryLoserIsNamed: each loser has a problem that names the current owner.
func TestEveryLoserIsNamed(t *testing.T) {
	const count = 50
	tr := contendersTracker(t, count)
	check := func(when string, losers []int, owner int) {
		t.Helper()
		var want []string
		for _, i := range losers {
			want = append(want, fmt.Sprintf("Service ns/%s: spec.externalIPs: 198.51.0.1:1000/TCP already belongs to Service ns/%s, and 89 more are taken", contenderName(i), contenderName(owner)))
		}
		if got := problemText(newest(t, tr)); !slices.Equal(got, want) {
			t.Errorf("%s: got problems\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	numbers := func(from, to int) (out []int) {
		for i := from; i <= to; i++ {
			out = append(out, i)
		}
		return out
	}
	before := newest(t, tr)
	check("first", numbers(2, count), 1)
	tr.DeleteService(objectName(contenderName(1)))
	check("without the first", numbers(3, count), 2)
	tr.UpdateService(contender(40, 30, 3, objects.Created(1)))
	check("one becomes older", append(numbers(2, 39), numbers(41, count)...), 40)
	tr.UpdateService(contender(40, 30, 3))
	check("and younger again", numbers(3, count), 2)
	// An older snapshot keeps its problems.
	if got := problemText(before); len(got) != count-1 || !strings.HasSuffix(got[0], "belongs to Service ns/s0001, and 89 more are taken") {
		t.Errorf("older snapshot: got problems %.300q, want those at its time", got)
	}
}

// TestOwnersSwap: two Services swap addresses that their own problems only count, with and
// without frontends there; the problem of a third Service names the new owner.
func TestOwnersSwap(t *testing.T) {
	const x, y = "203.0.113.1", "203.0.113.2"
	taken, hosts := claimed(maxNamedConflicts), manyAddrs(1000)
	for _, own := range []int{0, 600} { // 600 addresses and 1,000 endpoints are too many for further frontends
		tr := newTestTracker()
		update := func(addrs ...string) {
			for i, name := range []string{"a", "b"} {
				external := append(slices.Clone(taken), addrs[1-i])
				external = append(external, objects.Many(own, func(n int) string { return fmt.Sprintf("192.%d.%d.%d", 1+i, n/250, 1+n%250) })...)
				tr.UpdateService(apiService(name, fmt.Sprint("10.96.0.", 1+i), objects.Created(1), objects.LoadBalancer(addrs[i]), objects.ExternalIPs(external...)))
				tr.UpdateEndpointSlice(apiSlice(name+"-1", name, hosts...))
			}
		}
		tr.UpdateService(apiService("first", "10.96.0.9", objects.Created(0), objects.ExternalIPs(taken...)))
		tr.UpdateService(apiService("third", "10.96.0.8", objects.Created(2), objects.ExternalIPs(x)))
		update(x, y)
		before := problemText(newest(t, tr))
		update(y, x)
		after := problemText(newest(t, tr))
		last := len(before) - 1
		if len(after) != len(before) || !slices.Equal(after[:last], before[:last]) {
			t.Errorf("%d further addresses: got problems %q, want the problems of the two as before: %q", own, after, before)
		}
		want := fmt.Sprintf("Service ns/third: spec.externalIPs: %s:80/TCP already belongs to Service ns/", x)
		if got := []string{before[last], after[last]}; !slices.Equal(got, []string{want + "a", want + "b"}) {
			t.Errorf("%d further addresses: got problems %q before and after, want %q with a and b", own, got, want)
		}
	}
}

// TestOwnerWithoutFrontend: neither the old nor the new owner of an address has a
// frontend for it, as both have too many; the problem of a third Service names the new
// owner.
func TestOwnerWithoutFrontend(t *testing.T) {
	const wanted = "203.0.113.1"
	tr := newTestTracker()
	var hosts []string
	for i := range 1000 {
		hosts = append(hosts, fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250))
	}
	big := func(name string, net, age int) *v1.Service {
		var addrs []string
		for i := range 600 {
			addrs = append(addrs, fmt.Sprintf("198.%d.%d.%d", net, i/250, 1+i%250))
		}
		return apiService(name, fmt.Sprintf("10.96.0.%d", net), objects.ExternalIPs(append(addrs, wanted)...), objects.Created(int64(age)))
	}
	for i, name := range []string{"a", "b"} {
		tr.UpdateService(big(name, 1+i, 1+i))
		tr.UpdateEndpointSlice(apiSlice(name+"-1", name, hosts...))
	}
	tr.UpdateService(apiService("c", "10.96.0.3", objects.ExternalIPs(wanted), objects.Created(9)))
	for _, step := range []struct {
		age   int
		owner string
	}{{1, "a"}, {5, "b"}, {1, "a"}} {
		tr.UpdateService(big("a", 1, step.age))
		s := newest(t, tr)
		if got := owners(s)[wanted+":80/TCP"]; len(got) != 0 {
			t.Fatalf("got owners %q, want none that has a frontend", got)
		}
		want := fmt.Sprintf("Service ns/c: spec.externalIPs: %s:80/TCP already belongs to Service ns/%s", wanted, step.owner)
		if got := problemText(s); !slices.Contains(got, want) {
			t.Errorf("with creation %d: got problems %q, want among them %q", step.age, got, want)
		}
	}
}

// TestConflictsAreBounded: one Service claims the addresses of very many others.
func TestConflictsAreBounded(t *testing.T) {
	const count = 300
	tr := newTestTracker()
	var all []string
	for i := range count {
		addr := fmt.Sprintf("198.51.%d.%d", i/250, 1+i%250)
		all = append(all, addr)
		tr.UpdateService(contender(i, 0, 3, objects.ExternalIPs(addr)))
	}
	tr.UpdateService(contender(9999, 0, 3, objects.ExternalIPs(all...), func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.97.0.1", nil }))
	got := problemText(newest(t, tr))
	if len(got) != maxNamedConflicts {
		t.Fatalf("got %d problems, want %d:\n%s", len(got), maxNamedConflicts, strings.Join(got, "\n"))
	}
	if want := "198.51.0.1:1000/TCP already belongs to Service ns/s0000"; !strings.HasSuffix(got[0], want) {
		t.Errorf("got first problem %q, want one that ends in %q", got[0], want)
	}
	if want := fmt.Sprintf("198.51.0.8:1000/TCP already belongs to Service ns/s0007, and %d more are taken", 3*count-maxNamedConflicts); !strings.HasSuffix(got[7], want) {
		t.Errorf("got last problem %q, want one that ends in %q", got[7], want)
	}
}

// TestContestedHeap limits the memory of 40 Services with the same 1,000 addresses at 9
// ports.
func TestContestedHeap(t *testing.T) {
	const most = 25 << 20
	before := liveHeap()
	tr := newTestTracker()
	for i := range 40 {
		tr.UpdateService(contender(i, 1000, 9))
	}
	s := newest(t, tr)
	problems := len(problemText(s))
	got := liveHeap() - before
	runtime.KeepAlive(tr)
	t.Logf("40 Services with 1,000 contested addresses at 9 ports use %.1f MiB", float64(got)/(1<<20))
	if got > most {
		t.Errorf("got %d bytes, want at most %d", got, most)
	}
	if problems != 39 {
		t.Errorf("got %d problems, want one for each Service but the first", problems)
	}
}
