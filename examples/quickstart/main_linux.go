package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "usage: quickstart\nIt makes a small cluster, shows what a Service does, and removes everything again.")
		os.Exit(2)
	}
	// Network namespaces need privileges. Without them the program runs again in a
	// user namespace, where it has them.
	status, err := netns.Privileged(func() int {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		return exitStatus(run(ctx, os.Stdout))
	})
	if err != nil {
		status = exitStatus(err)
	}
	os.Exit(status)
}

// run makes the cluster, runs the steps of the demonstration, and removes everything.
func run(ctx context.Context, out io.Writer) (err error) {
	m, err := readManifest(manifestYAML)
	if err != nil {
		return fmt.Errorf("manifest.yaml: %w", err)
	}
	net, err := newNetwork(ctx, m.pods)
	defer func() { err = errors.Join(err, net.Close()) }()
	if err != nil {
		return fmt.Errorf("making the network: %w", err)
	}
	p, err := startProxy(ctx, net.node)
	if err != nil {
		return fmt.Errorf("starting the proxy: %w", err)
	}
	s := &story{
		out: out, manifest: m, network: net, proxy: p,
		client: newClient(net.client, false), last: m.pods[len(m.pods)-1].name,
	}
	err = s.tell(ctx)
	// Clean up even if the context has ended.
	if err := errors.Join(err, p.stop(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	return s.end(ctx)
}

// exitStatus returns the exit status for an error, and prints the error.
func exitStatus(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "\nquickstart: interrupted; nothing is left behind")
	default:
		fmt.Fprintf(os.Stderr, "\nquickstart: %v\n%s", err, remedy(err))
	}
	return 1
}

// remedy returns what the user can do about an error; "" if that is not known.
func remedy(err error) string {
	switch {
	case errors.Is(err, netns.ErrDenied):
		return "What to do: this program needs network namespaces. Build it and run it as root:\n" +
			"  go build -o /tmp/quickstart ./examples/quickstart && sudo /tmp/quickstart\n"
	case errors.Is(err, proxy.ErrUnsupported):
		return "What to do: the kernel must be Linux 5.13 or later, with nf_tables, connection tracking and\n" +
			"NAT. If they are modules that are not loaded, load them:\n" +
			"  sudo modprobe -a nf_tables nf_conntrack nft_ct nft_chain_nat nft_nat nft_masq nft_numgen nft_fib_ipv4 nft_fib_ipv6 nft_reject_ipv4 nft_reject_ipv6\n"
	case errors.Is(err, syscall.EOPNOTSUPP):
		return "What to do: the kernel has no virtual Ethernet (veth). If it is a module, load it:\n" +
			"  sudo modprobe veth\n"
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return "What to do: something denies the program its own network, as containers do. Run it outside\n" +
			"of the container, or start the container with --privileged.\n"
	}
	return ""
}
