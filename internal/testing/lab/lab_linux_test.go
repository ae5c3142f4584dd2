package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// newCluster makes a node with hosts of each kind.
func newCluster(t testing.TB) *Lab {
	const bridge, all = "10.0.0.1/24 fd00:10::1/64", "0.0.0.0/0 ::/0"
	return New(t,
		Host{Name: "node", Serve: []uint16{8080}, Sysctls: map[string]string{"net/bridge/bridge-nf-call-iptables": "0"}},
		Host{Name: "gateway", Uplink: "node", Link: "up", Addrs: "172.18.0.1/32 fd00:18::1/128", Gateway: "172.18.0.2/32 fd00:18::2/128", Behind: all, Owned: "10.96.0.0/16 fd00:96::/112", Serve: []uint16{80}},
		Host{Name: "other", Uplink: "node", Addrs: "172.18.0.3/32 fd00:18::3/128", Behind: "10.1.0.0/24 fd00:10:1::/64"},
		Host{Name: "remote", Uplink: "other", Addrs: "10.1.0.5/32 fd00:10:1::5/128", Serve: []uint16{8080}},
		Host{Name: "many", Uplink: "node", Addrs: "10.2.0.1/32 10.2.9.9/32 fd00:10:2::1/128", Owned: "10.2.1.0/24 fd00:10:2::/112", Serve: []uint16{8080}},
		Host{Name: "pod", Uplink: "node", Bridge: "cni0", Hairpin: true, Addrs: "10.0.0.5/24 fd00:10::5/64", Gateway: bridge, Serve: []uint16{8080}},
		Host{Name: "pod2", Uplink: "node", Bridge: "cni0", Addrs: "10.0.0.6/24 fd00:10::6/64", Gateway: bridge, Serve: []uint16{8080}},
		Host{Name: "closed", Uplink: "node", Addrs: "192.0.2.10/24", Gateway: "192.0.2.1/24", Rules: "table ip deny { chain in { type filter hook input priority 0; udp dport 9 drop; }; }"},
	)
}

// Each host reaches all others, and what they own; the servers see the addresses of the hosts.
func TestEveryHostReachesEveryOther(t *testing.T) {
	t.Parallel()
	l := newCluster(t)
	for from, sees := range map[string][2]string{
		"gateway": {"172.18.0.1", "fd00:18::1"}, "other": {"172.18.0.3", "fd00:18::3"}, "remote": {"10.1.0.5", "fd00:10:1::5"},
		"many": {"10.2.0.1", "fd00:10:2::1"}, "pod": {"10.0.0.5", "fd00:10::5"}, "pod2": {"10.0.0.6", "fd00:10::6"},
	} {
		for to, server := range map[string]string{
			"172.18.0.2:8080": "node", "[fd00:18::2]:8080": "node", "10.0.0.1:8080": "node", "10.96.7.7:80": "gateway", "[fd00:96::7]:80": "gateway",
			"10.1.0.5:8080": "remote", "[fd00:10:1::5]:8080": "remote", "10.2.1.77:8080": "many", "10.2.9.9:8080": "many", "[fd00:10:2::77]:8080": "many",
			"10.0.0.5:8080": "pod", "[fd00:10::5]:8080": "pod", "10.0.0.6:8080": "pod2",
		} {
			at := netip.MustParseAddrPort(to)
			client := netip.MustParseAddr(sees[map[bool]int{true: 0, false: 1}[at.Addr().Is4()]])
			if server == from {
				continue // To itself, a host uses the address that it connects to.
			}
			for _, network := range []string{"tcp", "udp"} {
				a, err := Ask(t.Context(), l.NS(from), network, to)
				if err != nil || a.Name != server || a.Client.Addr() != client || a.Own != at {
					t.Errorf("%s from %s to %s: got answer %+v, error %v, want one of %s that sees %v", network, from, to, a, err, server, client)
				}
			}
		}
	}
}

// A connection goes on, and an error tells what has happened to its packets.
func TestAsk(t *testing.T) {
	t.Parallel()
	l := newCluster(t)
	c, err := Dial(t.Context(), l.NS("closed"), "tcp", "10.1.0.5:8080")
	testenv.NoError(t, err)
	defer c.Close() //nolint:errcheck // the test is over
	for i := range 3 {
		if a, err := c.Ask(t.Context()); err != nil || a.Question != fmt.Sprint(i+1) || a.Name != "remote" {
			t.Errorf("question %d: got answer %+v, error %v", i+1, a, err)
		}
	}
	for network, to := range map[string]string{"tcp": "192.0.2.10:9", "udp": "192.0.2.10:10"} {
		if _, err := Ask(t.Context(), l.NS("pod"), network, to); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("closed port of %s: got error %v, want %v", network, err, syscall.ECONNREFUSED)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Ask(ctx, l.NS("pod"), "udp", "192.0.2.10:9"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("dropped packets: got error %v, want %v", err, os.ErrDeadlineExceeded)
	}
	s := l.Serve("closed", "brief", 9090)
	if _, err := Ask(t.Context(), l.NS("pod"), "tcp", "192.0.2.10:9090"); err != nil {
		t.Error(err)
	}
	testenv.NoError(t, s.Close())
	if _, err := Ask(t.Context(), l.NS("pod"), "tcp", "192.0.2.10:9090"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("server that was closed: got error %v, want %v", err, syscall.ECONNREFUSED)
	}
}

// Wrong plans name the host.
func TestWrongPlans(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		host Host
		want string
	}{
		"unknown uplink":   {Host{Name: "a", Uplink: "nod"}, `unknown host "nod", want one of ["a" "node"]`},
		"second host":      {Host{Name: "node"}, `there is a host "node" already`},
		"no address":       {Host{Name: "a", Uplink: "node", Addrs: "10.0.0.1"}, `host a: netip.ParsePrefix("10.0.0.1")`},
		"no such family":   {Host{Name: "a", Uplink: "node", Addrs: "10.0.0.1/24", Owned: "fd00::/64"}, "host a: route to fd00::/64: the host has no address of this family"},
		"unknown setting":  {Host{Name: "a", Sysctls: map[string]string{"net/nothing": "1"}}, "host a: netns: set sysctl"},
		"port used before": {Host{Name: "a", Serve: []uint16{80, 80}}, "server a: listen tcp"},
	} {
		said := testenv.Record(t, func(t testing.TB) { New(t, Host{Name: "node"}, test.host) })
		if len(said) != 1 || !strings.Contains(said[0], test.want) {
			t.Errorf("%s: got failures %q, want one with %q", what, said, test.want)
		}
	}
}

// endVariable names the environment variable that makes TestNothingIsLeft end in another way.
const endVariable = "VIPKIT_LAB_END"

// A test program that panics or is killed leaves neither namespaces nor the programs in them.
func TestNothingIsLeft(t *testing.T) {
	if end := os.Getenv(endVariable); end != "" {
		buildAndEnd(t, end)
	}
	t.Parallel()
	for _, end := range []string{"panic", "kill"} {
		machine := New(t, Host{Name: "machine"}).NS("machine")
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestNothingIsLeft$")
		cmd.Env = append(os.Environ(), endVariable+"="+end)
		out, err := cmd.StdoutPipe()
		testenv.NoError(t, err)
		testenv.NoError(t, testenv.Start(cmd, machine.Do))
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || line != "built\n" {
			t.Fatalf("%s: got output %q, error %v", end, line, err)
		}
		if _, err := machine.Netlink().LinkByName("held"); err != nil {
			t.Errorf("%s: link to a host of the lab: got error %v, want none", end, err)
		}
		testenv.NoError(t, cmd.Process.Signal(map[string]os.Signal{"panic": syscall.SIGCONT, "kill": syscall.SIGKILL}[end]))
		if err := cmd.Wait(); err == nil {
			t.Errorf("%s: got success of the process, want a failure", end)
		}
		awaitNoLink(t, machine, end)
	}
}

// buildAndEnd builds a lab with a program in it and a link to the machine, and waits for a signal.
func buildAndEnd(t *testing.T, end string) {
	t.Helper()
	l := newCluster(t)
	machine, err := netns.Current()
	testenv.NoError(t, err)
	testenv.NoError(t, errors.Join(
		netns.Link(netns.End{NS: machine, Name: "held"}, netns.End{NS: l.NS("pod"), Name: "held"}),
		testenv.Start(exec.Command("sleep", "600"), l.NS("pod").Do)))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGCONT)
	fmt.Println("built")
	<-signals
	go panic(end) // A panic outside of the goroutine of the test ends the process without cleaning up.
	<-signals
}

// awaitNoLink waits until the host at the other end of the link is gone.
func awaitNoLink(t *testing.T, machine *netns.NS, after string) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, "the namespaces of the lab are removed after a "+after, func() error {
		if _, err := machine.Netlink().LinkByName("held"); !errors.As(err, &netlink.LinkNotFoundError{}) {
			return fmt.Errorf("the link to one of them is there: %w", err)
		}
		return nil
	})
}
