package winaddr

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// asNetsh tells a process of the test program to act as netsh: to write its arguments to the file
// of this name, and to do what another variable says.
const asNetsh, behaviour = "VIPKIT_TEST_NETSH", "VIPKIT_TEST_NETSH_DOES"

func TestMain(m *testing.M) {
	if file := os.Getenv(asNetsh); file != "" {
		os.Exit(netsh(file))
	}
	os.Exit(m.Run())
}

func netsh(file string) int {
	if err := os.WriteFile(file, []byte(strings.Join(os.Args[1:], "\n")), 0o600); err != nil {
		return 2
	}
	switch os.Getenv(behaviour) {
	case "fail":
		_, _ = os.Stdout.WriteString("\r\nDas Objekt ist bereits vorhanden.\r\n\r\n") // in the language of the system
		return 1
	case "hang":
		time.Sleep(time.Minute)
	}
	return 0
}

// anInterface returns the name of an interface of this host, which may be in any language.
func anInterface(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil || len(all) == 0 {
		t.Fatalf("interfaces: got %v and error %v", all, err)
	}
	return all[0].Name
}

// newNetsh returns a Netsh that runs the test program, and a function that returns the arguments
// of its last run.
func newNetsh(t *testing.T, does string) (*Netsh, func() []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "arguments")
	t.Setenv(asNetsh, file)
	t.Setenv(behaviour, does)
	program, err := os.Executable()
	testenv.NoError(t, err)
	return &Netsh{Program: program, Interface: anInterface(t), Patience: 20 * time.Second}, func() []string {
		text, err := os.ReadFile(file)
		testenv.NoError(t, err)
		return strings.Split(string(text), "\n")
	}
}

func TestArgumentsOfNetsh(t *testing.T) {
	n, args := newNetsh(t, "")
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00::10")
	for _, c := range []struct {
		change func(context.Context, netip.Addr) error
		addr   netip.Addr
		want   string
	}{
		{n.Add, four, "interface ipv4 add address name=" + n.Interface + " address=10.96.0.10 mask=255.255.255.255 skipassource=true store=active"},
		{n.Add, six, "interface ipv6 add address interface=" + n.Interface + " address=fd00::10/128 skipassource=true store=active"},
		{n.Remove, four, "interface ipv4 delete address name=" + n.Interface + " address=10.96.0.10 store=active"},
		{n.Remove, six, "interface ipv6 delete address interface=" + n.Interface + " address=fd00::10 store=active"},
	} {
		testenv.NoError(t, c.change(t.Context(), c.addr))
		if got := strings.Join(args(), " "); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// Only the exit status decides; the output is for people.
func TestNetshFails(t *testing.T) {
	n, _ := newNetsh(t, "fail")
	err := n.Add(t.Context(), netip.MustParseAddr("10.96.0.10"))
	if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), `"Das Objekt ist bereits vorhanden."`) {
		t.Errorf("got error %v, want one with status and output", err)
	}
}

func TestNetshHangs(t *testing.T) {
	n, _ := newNetsh(t, "hang")
	n.Patience = 300 * time.Millisecond
	start := time.Now()
	err := n.Remove(t.Context(), netip.MustParseAddr("10.96.0.10"))
	if took := time.Since(start); err == nil || !strings.Contains(err.Error(), "no result within") || took > 20*time.Second {
		t.Errorf("got error %v after %v, want one that names the limit", err, took)
	}
	n.Patience = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := n.Remove(ctx, netip.MustParseAddr("10.96.0.10")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestNetshIsMissing(t *testing.T) {
	n, _ := newNetsh(t, "")
	n.Program = filepath.Join(t.TempDir(), "netsh.exe")
	if err := n.Add(t.Context(), netip.MustParseAddr("10.96.0.10")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got error %v, want %v", err, os.ErrNotExist)
	}
}

// Without the interface nothing is run, and a later attempt may succeed.
func TestInterfaceIsMissing(t *testing.T) {
	n, _ := newNetsh(t, "")
	n.Interface, n.Program = "no such interface", "must not be run"
	if err := n.Add(t.Context(), netip.MustParseAddr("10.96.0.10")); !errors.Is(err, backends.ErrUnavailable) {
		t.Errorf("got error %v, want %v", err, backends.ErrUnavailable)
	}
}

// The addresses are those of all interfaces.
func TestAddressesOfTheHost(t *testing.T) {
	got, err := (&Netsh{}).Addresses(t.Context())
	if err != nil || !slices.Contains(got, netip.MustParseAddr("127.0.0.1")) {
		t.Errorf("got %v and error %v, want 127.0.0.1 among them", got, err)
	}
}
