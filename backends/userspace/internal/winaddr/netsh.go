package winaddr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"
)

// Netsh changes addresses by running netsh, once for each address. Only the exit status says
// whether that has worked: the output is in the language of the system.
type Netsh struct {
	// Program is the path of netsh.
	Program string
	// Interface is the name of the interface.
	Interface string
	// Patience bounds each run of netsh.
	Patience time.Duration
}

// Addresses returns the addresses of the host, which it does not need netsh for.
func (n *Netsh) Addresses(context.Context) ([]netip.Addr, error) { return hostAddresses() }

// Add adds an address.
func (n *Netsh) Add(ctx context.Context, a netip.Addr) error {
	return n.run(ctx, n.addArgs(a))
}

// Remove removes an address.
func (n *Netsh) Remove(ctx context.Context, a netip.Addr) error {
	return n.run(ctx, n.removeArgs(a))
}

func (n *Netsh) addArgs(a netip.Addr) []string {
	if a.Is6() {
		return []string{"interface", "ipv6", "add", "address", "interface=" + n.Interface, "address=" + a.String() + "/128", "skipassource=true", "store=active"}
	}
	return []string{"interface", "ipv4", "add", "address", "name=" + n.Interface, "address=" + a.String(), "mask=255.255.255.255", "skipassource=true", "store=active"}
}

func (n *Netsh) removeArgs(a netip.Addr) []string {
	if a.Is6() {
		return []string{"interface", "ipv6", "delete", "address", "interface=" + n.Interface, "address=" + a.String(), "store=active"}
	}
	return []string{"interface", "ipv4", "delete", "address", "name=" + n.Interface, "address=" + a.String(), "store=active"}
}

func (n *Netsh) run(ctx context.Context, args []string) error {
	if _, err := find(n.Interface); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, n.Patience)
	defer cancel()
	cmd := exec.CommandContext(bounded, n.Program, args...)
	cmd.WaitDelay = time.Second // A process that netsh has started may keep the output open.
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case bounded.Err() != nil:
		return fmt.Errorf("netsh %s: no result within %v", strings.Join(args, " "), n.Patience)
	case err != nil:
		return fmt.Errorf("netsh %s: %w: %q", strings.Join(args, " "), exitError(err), shorten(out))
	}
	return nil
}

// exitError returns an error without the output, which [exec.ExitError] may have.
func exitError(err error) error {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return errors.New(e.ProcessState.String())
	}
	return err
}

// shorten returns the begin of an output, in one line.
func shorten(out []byte) string {
	const enough = 200
	text := strings.Join(strings.Fields(string(out)), " ")
	return text[:min(len(text), enough)]
}
