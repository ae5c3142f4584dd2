//go:build ipvs

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// open connects to IPVS of a new network namespace.
func open(t testing.TB) *Conn {
	t.Helper()
	return netnstest.Open(t, netnstest.NewNS(t), Open)
}

// do carries out operations that must succeed.
func do(t testing.TB, c *Conn, ops ...Op) {
	t.Helper()
	failed, err := c.Do(t.Context(), ops)
	if err != nil || len(failed) != 0 {
		t.Fatalf("got failures %v and error %v", texts(failed), err)
	}
}

func texts(failed []Failure) []string {
	var all []string
	for _, f := range failed {
		all = append(all, fmt.Sprintf("%d: %v", f.Index, &f))
	}
	return all
}

func services(t testing.TB, c *Conn) map[ServiceKey]ServiceConfig {
	t.Helper()
	list, err := c.Services(t.Context())
	testenv.NoError(t, err)
	all := map[ServiceKey]ServiceConfig{}
	for _, s := range list {
		all[s.Key] = s.Config
	}
	if len(all) != len(list) {
		t.Fatalf("got %d virtual servers in a list of %d", len(all), len(list))
	}
	return all
}

func destinations(t testing.TB, c *Conn, k ServiceKey) []Destination {
	t.Helper()
	list, err := c.Destinations(t.Context(), k)
	testenv.NoError(t, err)
	var all []Destination
	for _, d := range list {
		all = append(all, d.Destination)
	}
	slices.SortFunc(all, func(a, b Destination) int { return a.Addr.Compare(b.Addr) })
	return all
}

// What is written is listed: all kinds of keys, flags, timeouts, masks, weights and thresholds.
func TestWhatIsWrittenIsListed(t *testing.T) {
	c := open(t)
	want := map[ServiceKey]ServiceConfig{
		byAddr(6, "192.0.2.1:80"):       {Scheduler: RR},
		byAddr(17, "192.0.2.1:80"):      {Scheduler: WLC, Flags: 1 << 2},
		byAddr(132, "192.0.2.1:80"):     {Scheduler: MH, Flags: MHFallback | MHPort},
		byAddr(6, "[2001:db8::1]:443"):  {Scheduler: SH, Flags: Persistent | MHPort, Timeout: 10800, Prefix: 64},
		byAddr(17, "[2001:db8::1]:443"): {Scheduler: LC, Flags: Persistent, Timeout: 1},
		{Mark: 0x7f000001}:              {Scheduler: WRR, Flags: Persistent, Timeout: 86400, Prefix: 24},
		{Mark: 0xffffffff, IPv6: true}:  {Scheduler: NQ, Timeout: 300},
		{Mark: 0xffffffff}:              {Scheduler: SED, Flags: Persistent, Timeout: 7, Prefix: 1},
	}
	var ops []Op
	for k, v := range want {
		ops = append(ops, AddService(k, v))
	}
	do(t, c, ops...)
	if diff := gocmp.Diff(want, services(t, c), compareAddrs()); diff != "" {
		t.Errorf("virtual servers (-want +got):\n%s", diff)
	}
	ops = nil
	for k := range want {
		v := ServiceConfig{Scheduler: LBLCR, Flags: Persistent, Timeout: 2, Prefix: 8}
		want[k] = v
		ops = append(ops, SetService(k, v))
	}
	do(t, c, ops...)
	if diff := gocmp.Diff(want, services(t, c), compareAddrs()); diff != "" {
		t.Errorf("virtual servers after a change (-want +got):\n%s", diff)
	}
	for k := range want {
		testDestinations(t, c, k)
	}
	ops = nil
	for k := range want {
		ops = append(ops, DelService(k))
	}
	do(t, c, ops...)
	if got := services(t, c); len(got) != 0 {
		t.Errorf("virtual servers after their removal: got %v", got)
	}
}

func compareAddrs() gocmp.Option {
	return gocmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
}

func testDestinations(t *testing.T, c *Conn, k ServiceKey) {
	t.Helper()
	a, b := "10.0.0.1:8080", "10.0.0.1:8081"
	if k.isIPv6() {
		a, b = "[2001:db8:1::1]:8080", "[2001:db8:1::1]:8081"
	}
	full := Destination{Addr: netip.MustParseAddrPort(b), Weight: 1<<31 - 1, Upper: 1<<31 - 1, Lower: 1<<31 - 2, Forwarding: 3}
	do(t, c, AddDestination(k, to(a, 1)), AddDestination(k, full))
	if diff := gocmp.Diff([]Destination{to(a, 1), full}, destinations(t, c, k), compareAddrs()); diff != "" {
		t.Errorf("destinations of %v (-want +got):\n%s", k, diff)
	}
	drained := to(a, 0)
	drained.Upper = 1795410000
	do(t, c, SetDestination(k, drained), DelDestination(k, full.Addr))
	if diff := gocmp.Diff([]Destination{drained}, destinations(t, c, k), compareAddrs()); diff != "" {
		t.Errorf("destinations of %v after a change (-want +got):\n%s", k, diff)
	}
}

// Each kind of failure has its errno and a sentence that names the objects, and the
// operations around it are carried out.
func TestFailures(t *testing.T) {
	c := open(t)
	web, none := byAddr(6, "192.0.2.1:80"), byAddr(17, "192.0.2.1:80")
	rr := ServiceConfig{Scheduler: RR}
	tooHeavy := to("10.0.0.2:1", 1<<31)
	cases := []struct {
		op    Op
		errno unix.Errno
		want  string
	}{
		{AddService(web, rr), 0, ""},
		{AddService(web, rr), unix.EEXIST, "add virtual server TCP 192.0.2.1:80: the virtual server exists already"},
		{SetService(none, rr), unix.ESRCH, "change virtual server UDP 192.0.2.1:80: the virtual server does not exist"},
		{DelService(none), unix.ESRCH, "remove virtual server UDP 192.0.2.1:80: the virtual server does not exist"},
		{AddDestination(none, to("10.0.0.1:1", 1)), unix.ESRCH, "add destination 10.0.0.1:1 of UDP 192.0.2.1:80: the virtual server does not exist"},
		{AddService(none, ServiceConfig{Scheduler: "nosuch"}), unix.ENOENT, `add virtual server UDP 192.0.2.1:80: the kernel does not have the scheduler "nosuch"`},
		{AddService(none, ServiceConfig{}), unix.ENOENT, `add virtual server UDP 192.0.2.1:80: the kernel does not have the scheduler ""`},
		{AddService(none, ServiceConfig{Scheduler: "0123456789abcdef"}), unix.EINVAL, "add virtual server UDP 192.0.2.1:80: invalid argument"},
		{AddService(none, ServiceConfig{Scheduler: RR, Prefix: 33}), unix.EINVAL, "add virtual server UDP 192.0.2.1:80: invalid argument"},
		{AddService(ServiceKey{Protocol: 6}, rr), unix.EINVAL, "add virtual server TCP invalid AddrPort: invalid argument"},
		{AddService(byAddr(6, "[2001:db8::1]:1"), ServiceConfig{Scheduler: RR, Prefix: 129}), unix.EINVAL, "add virtual server TCP [2001:db8::1]:1: invalid argument"},
		{SetService(web, ServiceConfig{Scheduler: "nosuch"}), unix.ENOENT, `change virtual server TCP 192.0.2.1:80: the kernel does not have the scheduler "nosuch"`},
		{AddDestination(web, to("10.0.0.1:1", 1)), 0, ""},
		{AddDestination(web, to("10.0.0.1:1", 1)), unix.EEXIST, "add destination 10.0.0.1:1 of TCP 192.0.2.1:80: the destination exists already"},
		{AddDestination(web, tooHeavy), unix.ERANGE, "add destination 10.0.0.2:1 of TCP 192.0.2.1:80: numerical result out of range"},
		{AddDestination(web, Destination{Addr: tooHeavy.Addr, Upper: 1 << 31}), unix.EINVAL, "add destination 10.0.0.2:1 of TCP 192.0.2.1:80: invalid argument"},
		{AddDestination(web, Destination{Addr: tooHeavy.Addr, Lower: 1}), unix.ERANGE, "add destination 10.0.0.2:1 of TCP 192.0.2.1:80: numerical result out of range"},
		{AddDestination(web, Destination{}), unix.EINVAL, "add destination invalid AddrPort of TCP 192.0.2.1:80: invalid argument"},
		{SetDestination(web, to("10.0.0.2:1", 1)), unix.ENOENT, "change destination 10.0.0.2:1 of TCP 192.0.2.1:80: the destination does not exist"},
		{DelDestination(web, tooHeavy.Addr), unix.ENOENT, "remove destination 10.0.0.2:1 of TCP 192.0.2.1:80: the destination does not exist"},
		{SetDestination(web, to("10.0.0.1:1", 5)), 0, ""},
		{Op{}, unix.EOPNOTSUPP, "no operation: operation not supported"},
	}
	var ops []Op
	want := map[int]string{}
	errnos := map[int]unix.Errno{}
	for i, cs := range cases {
		ops = append(ops, cs.op)
		if cs.errno != 0 {
			want[i], errnos[i] = cs.want, cs.errno
		}
	}
	failed, err := c.Do(t.Context(), ops)
	testenv.NoError(t, err)
	got := map[int]string{}
	for _, f := range failed {
		got[f.Index] = f.Error()
		if !errors.Is(&f, errnos[f.Index]) {
			t.Errorf("%v: got errno %v, want %v", f.Op, f.Errno, errnos[f.Index])
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	if !slices.IsSortedFunc(failed, func(a, b Failure) int { return cmp.Compare(a.Index, b.Index) }) {
		t.Errorf("failures are not in order: %v", texts(failed))
	}
	if diff := gocmp.Diff([]Destination{to("10.0.0.1:1", 5)}, destinations(t, c, web), compareAddrs()); diff != "" {
		t.Errorf("destinations (-want +got):\n%s", diff)
	}
}

// Timeouts are changed one by one.
func TestTimeouts(t *testing.T) {
	c := open(t)
	want := Timeouts{TCP: 900, TCPFin: 120, UDP: 300}
	for _, set := range []Timeouts{{}, {TCP: 1000}, {TCPFin: 30}, {UDP: 60}, {TCP: 900, TCPFin: 120, UDP: 300}} {
		testenv.NoError(t, c.SetTimeouts(t.Context(), set))
		want = Timeouts{TCP: cmp.Or(set.TCP, want.TCP), TCPFin: cmp.Or(set.TCPFin, want.TCPFin), UDP: cmp.Or(set.UDP, want.UDP)}
		if got, err := c.Timeouts(t.Context()); err != nil || got != want {
			t.Errorf("after %+v: got %+v and error %v, want %+v", set, got, err, want)
		}
	}
	if err := c.SetTimeouts(t.Context(), Timeouts{TCP: 1<<32 - 1}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a timeout that is too long: got error %v, want EINVAL", err)
	}
}

// Lists that are longer than a message are complete, in both directions of growth.
func TestLongLists(t *testing.T) {
	const n = 1000
	c := open(t)
	var add, del []Op
	want := map[ServiceKey]ServiceConfig{}
	for i := range n {
		k := ServiceKey{Protocol: 6, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), 80)}
		want[k] = ServiceConfig{Scheduler: RR}
		add, del = append(add, AddService(k, want[k])), append(del, DelService(k))
	}
	web := byAddr(17, "192.0.2.1:80")
	want[web] = ServiceConfig{Scheduler: RR}
	add = append(add, AddService(web, want[web]))
	var pool []Destination
	for i := range 2 * n {
		d := Destination{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8080), Weight: uint32(i)}
		pool = append(pool, d)
		add = append(add, AddDestination(web, d))
	}
	do(t, c, add...)
	if diff := gocmp.Diff(want, services(t, c), compareAddrs()); diff != "" {
		t.Errorf("virtual servers (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(pool, destinations(t, c, web), compareAddrs()); diff != "" {
		t.Errorf("destinations (-want +got):\n%s", diff)
	}
	do(t, c, append(del, DelDestination(web, pool[0].Addr))...)
	if got := services(t, c); len(got) != 1 {
		t.Errorf("got %d virtual servers after a removal, want 1", len(got))
	}
	if diff := gocmp.Diff(pool[1:], destinations(t, c, web), compareAddrs()); diff != "" {
		t.Errorf("destinations after a removal (-want +got):\n%s", diff)
	}
}

// One system call sends many operations.
func TestFewSystemCalls(t *testing.T) {
	c := open(t)
	web := byAddr(6, "192.0.2.1:80")
	ops := []Op{AddService(web, ServiceConfig{Scheduler: RR})}
	for i := range maxOps + 1 {
		ops = append(ops, AddDestination(web, to(fmt.Sprintf("10.0.%d.%d:80", i>>8, i&255), 1)))
	}
	before := c.Calls()
	do(t, c, ops...)
	if n := c.Calls() - before; n > uint64(len(ops)/100) {
		t.Errorf("got %d system calls for %d operations, want %d at most", n, len(ops), len(ops)/100)
	}
	do(t, c)
	failed, err := c.Do(t.Context(), ops)
	if err != nil || len(failed) != len(ops) {
		t.Fatalf("adding all again: got %d failures and error %v, want %d", len(failed), err, len(ops))
	}
	for i, f := range failed {
		if f.Index != i || f.Op != ops[i] {
			t.Fatalf("failure %d: got that of operation %d, %v; want %v", i, f.Index, f.Op, ops[i])
		}
	}
}

// A list does not contain what other namespaces have.
func TestNamespacesAreSeparate(t *testing.T) {
	a, b := open(t), open(t)
	web := byAddr(6, "192.0.2.1:80")
	do(t, a, AddService(web, ServiceConfig{Scheduler: RR}), AddDestination(web, to("10.0.0.1:80", 1)))
	if got := services(t, b); len(got) != 0 {
		t.Errorf("got virtual servers %v of another namespace", got)
	}
	if got := destinations(t, b, web); len(got) != 0 {
		t.Errorf("got destinations %v of a virtual server that does not exist", got)
	}
	testenv.NoError(t, b.SetTimeouts(t.Context(), Timeouts{TCP: 7}))
	if got, err := a.Timeouts(t.Context()); err != nil || got.TCP != 900 {
		t.Errorf("got timeouts %+v and error %v, want 900 s for TCP", got, err)
	}
}

// A context that has ended sends nothing.
func TestCanceledContext(t *testing.T) {
	c := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	failed, err := c.Do(ctx, []Op{AddService(byAddr(6, "192.0.2.1:80"), ServiceConfig{Scheduler: RR})})
	if !errors.Is(err, context.Canceled) || len(failed) != 0 {
		t.Errorf("got failures %v and error %v, want context.Canceled", texts(failed), err)
	}
	if got := services(t, c); len(got) != 0 {
		t.Errorf("got virtual servers %v", got)
	}
}
