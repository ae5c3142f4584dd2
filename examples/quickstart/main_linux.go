package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/vipkit/vipkit/internal/netns"
	"github.com/vipkit/vipkit/proxy"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "usage: quickstart, without arguments: it makes a small cluster, shows what a Service does, and removes it again")
		os.Exit(2)
	}
	// Network namespaces take privileges. Without them the program runs a second
	// time in a user namespace, where it has them.
	status, err := netns.Privileged(func() int {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		if err := run(ctx, newScreen(os.Stdout), newNFTables); err != nil {
			complain(err)
			return 1
		}
		return 0
	})
	if err != nil {
		complain(err)
		status = 1
	}
	os.Exit(status)
}

// run does everything. What it made is gone when it returns.
func run(ctx context.Context, out *screen, newBackend func() (proxy.Backend, error)) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	m, err := readManifest(manifestYAML)
	if err != nil {
		return err
	}
	net, err := newNetwork(ctx, m)
	defer func() { err = errors.Join(err, net.Close()) }()
	if err != nil {
		return fmt.Errorf("making the network: %w", err)
	}
	p, err := startProxy(ctx, net.node, newBackend)
	if err != nil {
		return fmt.Errorf("starting the proxy: %w", err)
	}
	s := &story{screen: out, manifest: m, network: net, proxy: p, client: newCaller(net.client, false)}
	err = s.tell(ctx)
	// The context may have ended, but there is still something to do.
	stopped := p.stop(context.WithoutCancel(ctx))
	if err := errors.Join(err, stopped); err != nil {
		return err
	}
	return s.end(ctx)
}

func complain(err error) {
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "\nquickstart: interrupted; nothing is left behind")
		return
	}
	fmt.Fprintln(os.Stderr, "\nquickstart:", err)
	if advice := remedy(err); advice != "" {
		fmt.Fprintln(os.Stderr, advice)
	}
}

// remedy says what to do about an error; nothing if only its text can tell.
func remedy(err error) string {
	var denied *netns.UserNamespaceError
	switch {
	case errors.As(err, &denied):
		return "What to do: this program needs network namespaces. Build it and run it as root:\n" +
			"  go build -o /tmp/quickstart ./examples/quickstart && sudo /tmp/quickstart"
	case errors.Is(err, proxy.ErrUnsupported):
		return "What to do: the kernel must be Linux 5.13 or later, with nf_tables, connection tracking and\n" +
			"NAT. If they are modules that are not loaded, load them:\n" +
			"  sudo modprobe -a nf_tables nf_conntrack nft_ct nft_chain_nat nft_nat nft_masq nft_numgen nft_fib_ipv4 nft_fib_ipv6 nft_reject_ipv4 nft_reject_ipv6"
	case errors.Is(err, syscall.EOPNOTSUPP):
		return "What to do: the kernel has no virtual Ethernet (veth). If it is a module, load it:\n" +
			"  sudo modprobe veth"
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return "What to do: something denies the program its own network, as containers do. Run it outside\n" +
			"of the container, or start the container with --privileged."
	}
	return ""
}
