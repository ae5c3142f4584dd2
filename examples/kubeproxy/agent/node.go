package agent

import (
	"cmp"
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
func (c *config) tracker(mode string) proxy.TrackerOptions {
	o := proxy.TrackerOptions{
		NodeName: c.nodeName, NodeAddresses: c.nodeAddress, LocalTraffic: c.traffic, NodePortAddresses: c.nodePortsOf(mode),
		MasqueradeAll: c.section(mode).MasqueradeAll, IgnoreExternalIPs: !c.enabled(externalIPsGate), LocalFallback: c.LocalFallback,
	}
	switch mode {
	case ipvsMode:
		o.Annotations = []string{ipvs.SchedulerAnnotation}
	case kernelspaceMode:
		o.Annotations = []string{kernelspace.PreserveDestinationAnnotation, kernelspace.OptimizationAnnotation}
	}
	return o
}

// parseNode parses the fields about the node and its servers.
func (c *config) parseNode() []error {
	var errs [6]error
	c.healthzAddress, errs[0] = c.serverAddress("healthzBindAddress", c.HealthzBindAddress, [2]string{"0.0.0.0", "::"}, c.healthzPort)
	c.metricsAddress, errs[1] = c.serverAddress("metricsBindAddress", c.MetricsBindAddress, [2]string{"127.0.0.1", "::1"}, c.metricsPort)
	c.nodeName, errs[2] = c.parseNodeName()
	c.traffic, errs[3] = c.parseTraffic()
	c.nodePorts, errs[4] = c.parseNodePorts()
	c.nodeAddress, errs[5] = c.parseBindAddress()
	return errs[:]
}

// parseBindAddress returns the address of the node as long as its Node has none; nothing if the configuration has none.
func (c *config) parseBindAddress() ([]netip.Addr, error) {
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

func (c *config) parseNodeName() (string, error) {
	name := c.HostnameOverride
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("hostnameOverride is required, as the node has no readable hostname: %w", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", fmt.Errorf("hostnameOverride: %q: must not be blank", c.HostnameOverride)
	}
	return name, nil
}

// parseTraffic returns how traffic of pods is recognized. Windows has no names of interfaces for it: settings that need
// them are for Linux nodes, with which a file may be shared.
func (c *config) parseTraffic() (t proxy.LocalTraffic, err error) {
	switch c.DetectLocalMode {
	case "", "ClusterCIDR":
		if c.ClusterCIDR == "" {
			return t, nil
		}
		families := map[bool]int{}
		for text := range strings.SplitSeq(c.ClusterCIDR, ",") {
			text = strings.TrimSpace(text)
			r, err := netip.ParsePrefix(text)
			if err != nil {
				return t, fmt.Errorf("clusterCIDR: %q: must be a CIDR such as 10.100.0.0/16 or fd00::/48", text)
			}
			t.Sources = append(t.Sources, r.Masked())
			families[r.Addr().Is4()]++
		}
		if max(families[true], families[false]) > 1 {
			c.notes = append(c.notes, fmt.Sprintf("clusterCIDR: all %d ranges count; kube-proxy takes one of each IP family", len(t.Sources)))
		}
		return t, nil
	case "NodeCIDR":
		return proxy.LocalTraffic{NodePodCIDRs: true}, nil
	case bridgeInterface:
		t.Interface = c.DetectLocal.BridgeInterface
	case interfaceNamePrefix:
		t.InterfacePrefix = c.DetectLocal.InterfaceNamePrefix
	default:
		return t, fmt.Errorf("detectLocalMode: %q: want ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix", c.DetectLocalMode)
	}
	if c.onWindows() {
		return proxy.LocalTraffic{}, nil
	}
	if t.Interface == "" && t.InterfacePrefix == "" {
		return t, fmt.Errorf("detectLocalMode: %q: requires an interface name in detectLocal", c.DetectLocalMode)
	}
	return t, nil
}

// The values of detectLocalMode that need names of interfaces.
const (
	bridgeInterface     = "BridgeInterface"
	interfaceNamePrefix = "InterfaceNamePrefix"
)

// The ports of kube-proxy's servers.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// serverAddress returns the address of a server, as in kube-proxy: by default in the family of bindAddress. It is empty
// without a server.
func (c *config) serverAddress(field, given string, usual [2]string, port int32) (string, error) {
	if c.Hooks.NoListen || port <= 0 || port > maxPort { // Another check reports a port that is none.
		return "", nil
	}
	text := cmp.Or(given, usual[0])
	if given == "" && strings.Contains(c.BindAddress, ":") {
		text = usual[1]
	}
	if _, err := netip.ParseAddr(text); err == nil {
		text = net.JoinHostPort(text, strconv.Itoa(int(port)))
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Port() == 0 {
		return "", fmt.Errorf("%s: %q: must be an IP address and a port from 1 to 65535, such as 127.0.0.1:10249 or [::1]:10249", field, text)
	}
	return a.String(), nil
}
