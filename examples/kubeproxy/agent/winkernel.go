package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hns"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
)

// The modes on Windows; kube-proxy has the first one only.
const (
	kernelspaceMode = "kernelspace"
	userspaceMode   = "userspace"
)

// defaultRootEndpoint is the endpoint of the node in the networks of most CNI plugins.
const defaultRootEndpoint = "cbr0"

// network returns the name of the HNS network of the pods; empty if none is configured.
func (c *config) network() string { return cmp.Or(c.Winkernel.NetworkName, os.Getenv("KUBE_NETWORK")) }

// hnsClient is a client of HNS that must be closed.
type hnsClient interface {
	hcn.Client
	io.Closer
}

// openHNS opens the HNS of this machine.
func openHNS() (hnsClient, error) {
	client, err := hns.Open()
	if errors.Is(err, hcn.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", proxy.ErrUnsupported, err)
	}
	return client, err
}

// stateFile returns the path of the file in which a mode on Windows keeps what it has made.
func stateFile(mode string) string {
	return filepath.Join(os.Getenv("ProgramData"), backends.DefaultName, backends.DefaultName+"."+mode)
}

// hasState reports whether a mode on Windows may have left something.
func hasState(mode string) bool {
	_, err := os.Stat(stateFile(mode))
	return err == nil
}

// userspaceOptions returns the options of the backend of mode userspace.
func (c *config) userspaceOptions() userspace.Options {
	a := c.Addresses
	a.State = stateFile(userspaceMode)
	return userspace.Options{Capture: userspace.Addresses, Addresses: a}
}

// kernelspaceOptions returns the options of the backend of mode kernelspace, without HostMAC.
func (c *config) kernelspaceOptions() kernelspace.Options {
	w := &c.Winkernel
	o := kernelspace.Options{Network: c.network(), SourceVIPs: c.sourceVIPs, DSR: w.EnableDSR, StateFile: stateFile(kernelspaceMode), IPv4Fallback: true}
	if at, err := netip.ParseAddrPort(c.healthzAddress); err == nil && w.ForwardHealthCheckVip {
		o.HealthChecks = kernelspace.HealthChecks{Endpoint: cmp.Or(w.RootHnsEndpointName, defaultRootEndpoint), Port: at.Port()}
	}
	return o
}

// openKernelspace returns the backend of mode kernelspace, and the client that must be closed after
// it.
func (c *config) openKernelspace(o kernelspace.Options, registry prometheus.Registerer) (proxy.Backend, io.Closer, error) {
	if err := os.MkdirAll(filepath.Dir(o.StateFile), 0o700); err != nil {
		return nil, nil, err
	}
	open := openHNS
	if c.openHNS != nil {
		open = c.openHNS
	}
	client, err := open()
	if err != nil {
		return nil, nil, err
	}
	counted, err := countFailures(client, registry)
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	b, err := kernelspace.New(counted, o)
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return b, client, nil
}

// serveKernelspace returns the backend of mode kernelspace that serves. Overlay networks need the
// MAC address of the node, and a source address; other networks need neither.
func (a *instance) serveKernelspace(ctx context.Context, client kubernetes.Interface, registry prometheus.Registerer) (proxy.Backend, io.Closer, error) {
	o := a.kernelspaceOptions()
	if len(o.SourceVIPs) > 0 {
		var err error
		if o.HostMAC, err = a.hostMAC(ctx, client); err != nil {
			return nil, nil, err
		}
	}
	return a.openKernelspace(o, registry)
}

// nodeWait is the pause between attempts to read the Node.
const nodeWait = time.Second

// hostMAC returns the MAC address of the interface that has an address of the node; empty if no
// interface has one. Without bindAddress it waits until the Node can be read.
func (a *instance) hostMAC(ctx context.Context, client kubernetes.Interface) (mac string, err error) {
	addresses := a.tracker.NodeAddresses
	if len(addresses) == 0 {
		err = wait.PollUntilContextCancel(ctx, nodeWait, true, func(ctx context.Context) (done bool, _ error) {
			var failed error
			if addresses, failed = nodeAddresses(ctx, client, a.tracker.NodeName); failed != nil {
				a.log.Error(failed, "waiting for the addresses of the node")
			}
			return failed == nil, nil
		})
	}
	if err != nil {
		return "", err
	}
	if mac, err = macOf(addresses); err == nil && mac == "" {
		a.log.Info("no interface has an address of the node, so overlay networks cannot be served", "addresses", addresses)
	}
	return mac, err
}

// nodeAddresses returns the internal addresses of a Node.
func nodeAddresses(ctx context.Context, client kubernetes.Interface, name string) (all []netip.Addr, err error) {
	// The program may list and watch Nodes, and need not be allowed to get one.
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return nil, err
	}
	for _, n := range list.Items {
		for _, x := range n.Status.Addresses {
			if a, err := netip.ParseAddr(x.Address); err == nil && x.Type == v1.NodeInternalIP && n.Name == name {
				all = append(all, a.Unmap())
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the Node %s does not exist yet or has no internal address", name)
	}
	return all, nil
}

// macOf returns the MAC address of the interface with one of some addresses, in the form of HNS.
func macOf(addresses []netip.Addr) (string, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range interfaces {
		has, err := i.Addrs()
		if err != nil {
			return "", fmt.Errorf("addresses of interface %s: %w", i.Name, err)
		}
		if len(i.HardwareAddr) > 0 && slices.ContainsFunc(has, func(x net.Addr) bool {
			p, err := netip.ParsePrefix(x.String())
			return err == nil && slices.Contains(addresses, p.Addr().Unmap())
		}) {
			return strings.ToUpper(strings.ReplaceAll(i.HardwareAddr.String(), ":", "-")), nil
		}
	}
	return "", nil
}

// cleanUpWindows removes what the modes other than except have left.
func (c *config) cleanUpWindows(ctx context.Context, except string, log logr.Logger) error {
	r := removal{ctx: ctx, log: log}
	if except != userspaceMode && hasState(userspaceMode) {
		b, err := userspace.New(c.userspaceOptions())
		r.remove("the addresses of mode userspace", b, err)
	}
	if except != kernelspaceMode && (hasState(kernelspaceMode) || c.cleanup && c.network() != "") {
		r.removed("the load balancers and endpoints of mode kernelspace", c.cleanUpKernelspace(ctx))
	}
	return errors.Join(r.errs...)
}

// cleanUpKernelspace removes what mode kernelspace has left. It needs no settings of that mode: what it
// has made is looked for in all networks if there is none with the name.
func (c *config) cleanUpKernelspace(ctx context.Context) error {
	o := kernelspace.Options{Network: cmp.Or(c.network(), "none"), StateFile: stateFile(kernelspaceMode)}
	b, client, err := c.openKernelspace(o, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	return errors.Join(b.Cleanup(ctx), b.Close(), client.Close())
}
