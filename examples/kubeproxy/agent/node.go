package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/proxy"
)

// defaultSync is the default of the resync interval; nodes count as unhealthy when resyncs
// fail for twice as long.
const defaultSync = 30 * time.Second

// section returns the configuration of a mode, without localhostNodePorts.
func (c *config) section(mode string) v1alpha1.KubeProxyNFTablesConfiguration {
	i := &c.IPTables
	section := v1alpha1.KubeProxyNFTablesConfiguration{
		MasqueradeBit: i.MasqueradeBit, MasqueradeAll: i.MasqueradeAll, SyncPeriod: i.SyncPeriod, MinSyncPeriod: i.MinSyncPeriod,
	}
	switch mode {
	case nftablesMode:
		section = c.NFTables
	case ipvsMode: // as in kube-proxy, it masquerades as iptables says
		section.SyncPeriod, section.MinSyncPeriod = c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod
	}
	return section
}

// tracker returns the options of the tracker in a mode.
func (c *config) tracker(mode string) (o proxy.TrackerOptions, err error) {
	o.MasqueradeAll = c.section(mode).MasqueradeAll
	o.IgnoreExternalIPs = !c.enabled(externalIPsGate)
	o.LocalFallback = c.LocalFallback
	traffic := c.localTraffic
	if c.onWindows() {
		traffic = c.windowsTraffic
	}
	switch mode {
	case ipvsMode:
		o.Annotations = []string{ipvs.SchedulerAnnotation}
	case kernelspaceMode:
		o.Annotations = []string{kernelspace.PreserveDestinationAnnotation, kernelspace.OptimizationAnnotation}
	}
	var errs [4]error
	o.NodeName, errs[0] = c.nodeName()
	o.LocalTraffic, errs[1] = traffic()
	o.NodePortAddresses, errs[2] = c.nodePorts(mode)
	o.NodeAddresses, errs[3] = c.bindAddress()
	return o, errors.Join(errs[:]...)
}

// bindAddress returns the address of the node as long as its Node has none; nothing if the configuration has none.
func (c *config) bindAddress() ([]netip.Addr, error) {
	if c.BindAddress == "" {
		return nil, nil
	}
	a, err := netip.ParseAddr(c.BindAddress)
	if err != nil {
		return nil, fmt.Errorf("bindAddress: %q: must be an IP address", c.BindAddress)
	}
	if a.IsUnspecified() {
		return nil, nil
	}
	return []netip.Addr{a.Unmap()}, nil
}

func (c *config) nodeName() (string, error) {
	name := c.HostnameOverride
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("hostnameOverride is required, as the node has no readable hostname: %w", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", fmt.Errorf("hostnameOverride %q is blank", c.HostnameOverride)
	}
	return name, nil
}

func (c *config) localTraffic() (proxy.LocalTraffic, error) {
	var t proxy.LocalTraffic
	switch c.DetectLocalMode {
	case "", "ClusterCIDR":
		if c.ClusterCIDR == "" {
			return t, nil
		}
		for text := range strings.SplitSeq(c.ClusterCIDR, ",") {
			text = strings.TrimSpace(text)
			r, err := netip.ParsePrefix(text)
			if err != nil {
				return t, fmt.Errorf("clusterCIDR: %q: must be a CIDR such as 10.100.0.0/16 or fd00::/48", text)
			}
			t.Sources = append(t.Sources, r.Masked())
		}
		return t, nil
	case "NodeCIDR":
		return proxy.LocalTraffic{NodePodCIDRs: true}, nil
	case "BridgeInterface":
		t.Interface = c.DetectLocal.BridgeInterface
	case "InterfaceNamePrefix":
		t.InterfacePrefix = c.DetectLocal.InterfaceNamePrefix
	default:
		return t, fmt.Errorf("detectLocalMode: %q: want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", c.DetectLocalMode)
	}
	if t.Interface == "" && t.InterfacePrefix == "" {
		return t, fmt.Errorf("detectLocalMode %s requires an interface name in detectLocal", c.DetectLocalMode)
	}
	return t, nil
}

// The ports of kube-proxy's servers.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// addresses returns the addresses of healthz and the metrics, as in kube-proxy: by default in
// the family of bindAddress, healthz at all addresses and the metrics at loopback. An empty one
// means no server.
func (c *config) addresses() (healthz, metrics string, err error) {
	if c.Hooks.NoListen {
		return "", "", nil
	}
	everywhere, loopback := "0.0.0.0", "127.0.0.1"
	if strings.Contains(c.BindAddress, ":") {
		everywhere, loopback = "::", "::1"
	}
	var errs [2]error
	if healthz, err = withPort(cmp.Or(c.HealthzBindAddress, everywhere), c.healthzPort); err != nil {
		errs[0] = fmt.Errorf("healthzBindAddress: %w", err)
	}
	if metrics, err = withPort(cmp.Or(c.MetricsBindAddress, loopback), c.metricsPort); err != nil {
		errs[1] = fmt.Errorf("metricsBindAddress: %w", err)
	}
	return healthz, metrics, errors.Join(errs[:]...)
}

// withPort adds a port to an IP address without one, as kube-proxy does; port 0 turns the server off.
func withPort(text string, port int) (string, error) {
	if port == 0 {
		return "", nil
	}
	if _, err := netip.ParseAddr(text); err == nil {
		text = net.JoinHostPort(text, strconv.Itoa(port))
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		return "", fmt.Errorf("%q: must be an IP address and a port from 1 to 65535, such as 127.0.0.1:10249 or [::1]:10249", text)
	}
	return a.String(), nil
}
