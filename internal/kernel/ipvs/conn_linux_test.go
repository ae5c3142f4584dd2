//go:build ipvs

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/google/go-cmp/cmp"
	moby "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// mobyNumber is what moby/ipvs knows of IPVS, as long as the process runs.
//
//go:linkname mobyNumber github.com/moby/ipvs.ipvsFamily
var mobyNumber int //nolint:gochecknoglobals // it is a variable of moby/ipvs

// asNewProcess gives the process the number that IPVS has now.
func asNewProcess(t testing.TB, c *Conn) {
	t.Helper()
	f, err := c.ns.Netlink().GenlFamilyGet("IPVS")
	testenv.NoError(t, err)
	mobyNumber = int(f.ID)
}

// open connects to IPVS of a new network namespace.
func open(t testing.TB) *Conn {
	t.Helper()
	return netnstest.Open(t, netnstest.NewNS(t), Open)
}

// do carries out changes that must succeed.
func do(t testing.TB, c *Conn, ops ...Op) {
	t.Helper()
	for _, o := range ops {
		testenv.NoError(t, c.Do(o))
	}
}

func addServer(k ServiceKey, c ServiceConfig) Op    { return Op{Verb: Add, Key: k, Config: c} }
func changeServer(k ServiceKey, c ServiceConfig) Op { return Op{Verb: Change, Key: k, Config: c} }
func removeServer(k ServiceKey) Op                  { return Op{Verb: Remove, Key: k} }
func addDestination(k ServiceKey, d Destination) Op { return Op{Verb: Add, Key: k, Destination: d} }
func changeDestination(k ServiceKey, d Destination) Op {
	return Op{Verb: Change, Key: k, Destination: d}
}
func removeDestination(k ServiceKey, d Destination) Op {
	return Op{Verb: Remove, Key: k, Destination: d}
}

func services(t testing.TB, c *Conn) map[ServiceKey]ServiceConfig {
	t.Helper()
	list, err := c.Services()
	testenv.NoError(t, err)
	all := map[ServiceKey]ServiceConfig{}
	for _, s := range list {
		all[s.Key] = s.Config
	}
	return all
}

func destinations(t testing.TB, c *Conn, k ServiceKey) []Destination {
	t.Helper()
	all, err := c.Destinations(k)
	testenv.NoError(t, err)
	slices.SortFunc(all, func(a, b Destination) int { return a.Addr.Compare(b.Addr) })
	return all
}

func compareAddrs() cmp.Option {
	return cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
}

func byAddr(protocol uint8, at string) ServiceKey {
	return ServiceKey{Protocol: protocol, Addr: netip.MustParseAddrPort(at)}
}

func to(at string, weight uint32) Destination {
	return Destination{Addr: netip.MustParseAddrPort(at), Weight: weight}
}

// What is written is listed: all kinds of keys, flags, timeouts, weights and thresholds.
func TestWhatIsWrittenIsListed(t *testing.T) {
	c := open(t)
	want := map[ServiceKey]ServiceConfig{
		byAddr(6, "192.0.2.1:80"):       {Scheduler: "rr"},
		byAddr(17, "192.0.2.1:80"):      {Scheduler: "wlc", Flags: 1 << 2},
		byAddr(132, "192.0.2.1:80"):     {Scheduler: "mh", Flags: 3 << 3},
		byAddr(6, "[2001:db8::1]:443"):  {Scheduler: "sh", Flags: 1 | 1<<31, Timeout: 10800},
		byAddr(17, "[2001:db8::1]:443"): {Scheduler: "lc", Flags: 1, Timeout: 1},
		{Mark: 0x7f000001}:              {Scheduler: "wrr", Flags: 1, Timeout: 86400},
		{Mark: 0xffffffff, IPv6: true}:  {Scheduler: "nq", Timeout: 300},
		{Mark: 0xffffffff}:              {Scheduler: "sed", Flags: 1, Timeout: 7},
	}
	check := func(when string) {
		t.Helper()
		if diff := cmp.Diff(want, services(t, c), compareAddrs()); diff != "" {
			t.Errorf("virtual servers %s (-want +got):\n%s", when, diff)
		}
	}
	for k, v := range want {
		do(t, c, addServer(k, v))
	}
	check("after they were added")
	for k := range want {
		want[k] = ServiceConfig{Scheduler: "lblcr", Flags: 1, Timeout: 2}
		do(t, c, changeServer(k, want[k]))
		a, b := "10.0.0.1:8080", "10.0.0.1:8081"
		if k.IPv6 || k.Addr.Addr().Is6() {
			a, b = "[2001:db8:1::1]:8080", "[2001:db8:1::1]:8081"
		}
		full := Destination{Addr: netip.MustParseAddrPort(b), Weight: 1<<16 - 1, Upper: 1<<31 - 1, Lower: 1<<31 - 2, Forwarding: 3}
		do(t, c, addDestination(k, to(a, 1)), addDestination(k, full))
		if diff := cmp.Diff([]Destination{to(a, 1), full}, destinations(t, c, k), compareAddrs()); diff != "" {
			t.Errorf("destinations of %v (-want +got):\n%s", k, diff)
		}
		drained := to(a, 0)
		drained.Upper = 1795410000
		do(t, c, changeDestination(k, drained), removeDestination(k, full))
		if diff := cmp.Diff([]Destination{drained}, destinations(t, c, k), compareAddrs()); diff != "" {
			t.Errorf("destinations of %v after a change (-want +got):\n%s", k, diff)
		}
	}
	check("after they were changed")
	for k := range want {
		do(t, c, removeServer(k))
	}
	if got := services(t, c); len(got) != 0 {
		t.Errorf("virtual servers after their removal: got %v, want none", got)
	}
}

// A mask of persistence, which another program has set, is seen.
func TestMaskedPersistence(t *testing.T) {
	c := open(t)
	for _, at := range []string{"-t 192.0.2.1:80 -p 60 -M 255.255.255.0", "-t [2001:db8::1]:80 -p 60 -M 64", "-t 192.0.2.2:80 -p 60"} {
		_, err := netnstest.Run(t, c.ns, "", "sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; ipvsadm -A "+at)
		testenv.NoError(t, err)
	}
	for k, v := range services(t, c) {
		if want := k != byAddr(6, "192.0.2.2:80"); v.Masked != want {
			t.Errorf("%v: got Masked %t, want %t", k, v.Masked, want)
		}
	}
}

// Each kind of failure has its errno and a sentence that names the objects, and the
// changes around it are carried out.
func TestFailures(t *testing.T) {
	c := open(t)
	web, none := byAddr(6, "192.0.2.1:80"), byAddr(17, "192.0.2.1:80")
	rr := ServiceConfig{Scheduler: "rr"}
	cases := []struct {
		op    Op
		errno unix.Errno
		want  string
	}{
		{addServer(web, rr), 0, ""},
		{addServer(web, rr), unix.EEXIST, "add virtual server TCP 192.0.2.1:80: the virtual server exists already (file exists)"},
		{changeServer(none, rr), unix.ESRCH, "change virtual server UDP 192.0.2.1:80: the virtual server does not exist (no such process)"},
		{removeServer(ServiceKey{Mark: 7}), unix.ESRCH, "remove virtual server mark 0x7 (IPv6: false): the virtual server does not exist (no such process)"},
		{addDestination(none, to("10.0.0.1:1", 1)), unix.ESRCH, "add destination 10.0.0.1:1 of UDP 192.0.2.1:80: the virtual server does not exist (no such process)"},
		{addServer(none, ServiceConfig{Scheduler: "nosuch"}), unix.ENOENT, `add virtual server UDP 192.0.2.1:80: the kernel does not have the scheduler "nosuch" (no such file or directory)`},
		{addDestination(web, to("10.0.0.1:1", 1)), 0, ""},
		{addDestination(web, to("10.0.0.1:1", 1)), unix.EEXIST, "add destination 10.0.0.1:1 of TCP 192.0.2.1:80: the destination exists already (file exists)"},
		{addDestination(web, to("10.0.0.2:1", 1<<31)), unix.ERANGE, "add destination 10.0.0.2:1 of TCP 192.0.2.1:80: numerical result out of range"},
		{removeDestination(web, to("10.0.0.2:1", 0)), unix.ENOENT, "remove destination 10.0.0.2:1 of TCP 192.0.2.1:80: the destination does not exist (no such file or directory)"},
		{changeDestination(web, to("10.0.0.1:1", 5)), 0, ""},
	}
	for _, cs := range cases {
		err := c.Do(cs.op)
		if got := fmt.Sprint(err); cs.errno == 0 && err != nil || cs.errno != 0 && (got != cs.want || !errors.Is(err, cs.errno)) {
			t.Errorf("got error %v, want %q", err, cs.want)
		}
	}
	if diff := cmp.Diff([]Destination{to("10.0.0.1:1", 5)}, destinations(t, c, web), compareAddrs()); diff != "" {
		t.Errorf("destinations (-want +got):\n%s", diff)
	}
}

func timeouts(c *Conn) (now moby.Config, err error) {
	err = c.call(func(h *moby.Handle) error {
		config, err := h.GetConfig()
		if err == nil {
			now = *config
		}
		return err
	})
	return now, err
}

// Timeouts are changed one by one, in one namespace.
func TestTimeouts(t *testing.T) {
	c, other := open(t), open(t)
	for _, step := range []struct{ set, want moby.Config }{
		{moby.Config{}, moby.Config{TimeoutTCP: 900 * time.Second, TimeoutTCPFin: 120 * time.Second, TimeoutUDP: 300 * time.Second}},
		{moby.Config{TimeoutTCP: 1000 * time.Second}, moby.Config{TimeoutTCP: 1000 * time.Second, TimeoutTCPFin: 120 * time.Second, TimeoutUDP: 300 * time.Second}},
		{moby.Config{TimeoutUDP: time.Minute}, moby.Config{TimeoutTCP: 1000 * time.Second, TimeoutTCPFin: 120 * time.Second, TimeoutUDP: time.Minute}},
	} {
		testenv.NoError(t, c.SetTimeouts(step.set))
		if got, err := timeouts(c); err != nil || got != step.want {
			t.Errorf("after %+v: got %+v and error %v, want %+v", step.set, got, err, step.want)
		}
	}
	if got, err := timeouts(other); err != nil || got.TimeoutTCP != 900*time.Second {
		t.Errorf("another namespace: got %+v and error %v, want 900 s for TCP", got, err)
	}
}

// A call without an answer ends, and the next one is by another socket.
func TestNoAnswer(t *testing.T) {
	c := open(t)
	c.patience = 50 * time.Millisecond
	err := c.call(func(h *moby.Handle) error {
		for start := time.Now(); time.Since(start) < time.Minute; {
			if _, err := h.GetServices(); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		t.Error("a call that goes on: got no error, want one")
	}
	c.patience = answerTimeout
	do(t, c, addServer(ServiceKey{Mark: 1}, ServiceConfig{Scheduler: "rr"}))
}

// A scheduler whose module cannot be loaded is missing like one that does not exist.
func TestMissingScheduler(t *testing.T) {
	c := open(t)
	web := byAddr(6, "192.0.2.1:80")
	end := netnstest.WithoutModule(t, "ip_vs_ovf")
	ovf := addServer(web, ServiceConfig{Scheduler: "ovf"})
	if err := c.Do(ovf); !errors.Is(err, unix.ENOENT) {
		t.Errorf("without the module: got error %v, want ENOENT", err)
	}
	end()
	do(t, c, ovf, removeServer(web))
}

// A connection notices that ip_vs was unloaded, and that it is loaded again, which only another process
// can use.
func TestUnloaded(t *testing.T) {
	c := open(t)
	t.Cleanup(func() { asNewProcess(t, c) })
	web := byAddr(6, "192.0.2.1:80")
	calls := map[string]func() error{
		"Do": func() error {
			if err := c.Do(addServer(web, ServiceConfig{Scheduler: "rr"})); err != nil {
				return err
			}
			return c.Do(removeServer(web))
		},
		"Services":     func() error { _, err := c.Services(); return err },
		"Destinations": func() error { _, err := c.Destinations(web); return err },
		"SetTimeouts":  func() error { return c.SetTimeouts(moby.Config{TimeoutTCP: 800 * time.Second}) },
	}
	check := func(when string, want error) {
		t.Helper()
		for name, call := range calls {
			if err := call(); !errors.Is(err, want) {
				t.Errorf("%s %s: got error %v, want %v", name, when, err, want)
			}
		}
	}
	check("with ip_vs", nil)
	end := netnstest.WithoutModule(t, "ip_vs")
	check("without ip_vs", ErrMissing)
	end()
	check("after ip_vs was loaded again", ErrReloaded)
	asNewProcess(t, c)
	check("in another process", nil)
	netnstest.WithoutModule(t, "ip_vs")
	err := netnstest.NewNS(t).Do(func() error {
		_, err := Open()
		return err
	})
	if !errors.Is(err, ErrMissing) {
		t.Errorf("Open without ip_vs: got error %v, want ErrMissing", err)
	}
}
