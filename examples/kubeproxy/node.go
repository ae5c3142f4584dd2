package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/proxy"
)

// defaultSync is the default of the resync interval; nodes count as unhealthy when resyncs
// fail for twice as long.
const defaultSync = 30 * time.Second

// section returns the configuration of a mode.
func (c *config) section(mode string) modeConfig {
	section := c.IPTables
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
	if allow := c.FeatureGates.AllowServiceExternalIPs; allow != nil {
		o.IgnoreExternalIPs = !*allow
	}
	if o.NodeName, err = c.nodeName(); err != nil {
		return o, err
	}
	traffic := c.localTraffic
	if c.onWindows() {
		traffic = c.windowsTraffic
	}
	if o.LocalTraffic, err = traffic(); err != nil {
		return o, err
	}
	nodePorts := c.NodePortAddresses
	if len(nodePorts) == 0 && mode != nftablesMode {
		nodePorts = []string{"all"} // as in kube-proxy's modes iptables and ipvs
	}
	switch mode {
	case ipvsMode:
		o.Annotations = []string{ipvs.SchedulerAnnotation}
	case kernelspaceMode:
		o.Annotations = []string{kernelspace.PreserveDestinationAnnotation, kernelspace.OptimizationAnnotation}
	}
	if o.NodePortAddresses, err = proxy.ParseNodePortAddresses(nodePorts...); err != nil {
		return o, fmt.Errorf("nodePortAddresses: %w", err)
	}
	if c.BindAddress != "" {
		a, err := netip.ParseAddr(c.BindAddress)
		if err != nil {
			return o, fmt.Errorf("bindAddress: %w", err)
		}
		if !a.IsUnspecified() {
			o.NodeAddresses = []netip.Addr{a.Unmap()}
		}
	}
	return o, nil
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

func (p *pods) localTraffic() (proxy.LocalTraffic, error) {
	var t proxy.LocalTraffic
	switch p.DetectLocalMode {
	case "", "ClusterCIDR":
		for text := range strings.FieldsFuncSeq(p.ClusterCIDR, func(c rune) bool { return c == ',' || c == ' ' }) {
			r, err := netip.ParsePrefix(text)
			if err != nil {
				return t, fmt.Errorf("clusterCIDR: %w", err)
			}
			t.Sources = append(t.Sources, r.Masked())
		}
		return t, nil
	case "NodeCIDR":
		return proxy.LocalTraffic{NodePodCIDRs: true}, nil
	case "BridgeInterface":
		t.Interface = p.DetectLocal.BridgeInterface
	case "InterfaceNamePrefix":
		t.InterfacePrefix = p.DetectLocal.InterfaceNamePrefix
	default:
		return t, fmt.Errorf("detectLocalMode: %q: want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", p.DetectLocalMode)
	}
	if t.Interface == "" && t.InterfacePrefix == "" {
		return t, fmt.Errorf("detectLocalMode %s requires an interface name in detectLocal", p.DetectLocalMode)
	}
	return t, nil
}

// addresses returns the addresses of healthz and the metrics, as in kube-proxy: by default in
// the family of bindAddress, healthz at all addresses and the metrics at loopback.
func (s *serving) addresses() (healthz, metrics string, err error) {
	everywhere, loopback := "0.0.0.0", "127.0.0.1"
	if strings.Contains(s.BindAddress, ":") {
		everywhere, loopback = "::", "::1"
	}
	if healthz, err = withPort(s.HealthzBindAddress, everywhere, 10256); err != nil {
		return "", "", fmt.Errorf("healthzBindAddress: %w", err)
	}
	if metrics, err = withPort(s.MetricsBindAddress, loopback, 10249); err != nil {
		return "", "", fmt.Errorf("metricsBindAddress: %w", err)
	}
	return healthz, metrics, nil
}

// withPort completes an address that may lack the port, or is empty.
func withPort(text, host string, port int) (string, error) {
	if text == "" {
		text = host
	}
	if a, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
		text = net.JoinHostPort(a.String(), strconv.Itoa(port))
	}
	a, err := netip.ParseAddrPort(text)
	return a.String(), err
}
