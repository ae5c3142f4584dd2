package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vipkit/vipkit/proxy"
)

// defaultSync is how often the dataplane is verified where nothing else is said;
// nodes count as unhealthy when that fails for twice as long.
const defaultSync = 30 * time.Second

// section gives what the section of a mode says.
func (c *config) section(mode string) modeConfig {
	if mode == nftablesMode {
		return c.nftables
	}
	return c.iptables
}

// tracker gives what a tracker must know in a mode.
func (c *config) tracker(mode string) (o proxy.TrackerOptions, err error) {
	o.MasqueradeAll = c.section(mode).masqueradeAll
	if o.NodeName, err = c.nodeName(); err != nil {
		return o, err
	}
	if o.LocalTraffic, err = c.pods.localTraffic(); err != nil {
		return o, err
	}
	nodePorts := c.nodePorts
	if len(nodePorts) == 0 && mode == iptablesMode {
		nodePorts = []string{"all"} // as users of this mode know it
	}
	if o.NodePortAddresses, err = proxy.ParseNodePortAddresses(nodePorts...); err != nil {
		return o, fmt.Errorf("nodePortAddresses: %w", err)
	}
	if c.serving.bindAddress != "" {
		a, err := netip.ParseAddr(c.serving.bindAddress)
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
	name := c.hostnameOverride
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("hostnameOverride is required: %w", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", fmt.Errorf("hostnameOverride %q is blank", c.hostnameOverride)
	}
	return name, nil
}

func (p *podsConfig) localTraffic() (proxy.LocalTraffic, error) {
	var t proxy.LocalTraffic
	switch p.mode {
	case "", "ClusterCIDR":
		for text := range strings.FieldsFuncSeq(p.clusterCIDR, func(c rune) bool { return c == ',' || c == ' ' }) {
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
		t.Interface = p.bridge
	case "InterfaceNamePrefix":
		t.InterfacePrefix = p.prefix
	default:
		return t, fmt.Errorf("detectLocalMode: %q is none of ClusterCIDR, NodeCIDR, BridgeInterface and InterfaceNamePrefix", p.mode)
	}
	if t.Interface == "" && t.InterfacePrefix == "" {
		return t, fmt.Errorf("detectLocalMode %s takes the name of an interface in detectLocal", p.mode)
	}
	return t, nil
}

// addresses gives where healthz and the metrics are served, as in kube-proxy: by
// default in the family of bindAddress, and healthz for everybody.
func (s *servingConfig) addresses() (healthz, metrics string, err error) {
	everywhere, loopback := "0.0.0.0", "127.0.0.1"
	if strings.Contains(s.bindAddress, ":") {
		everywhere, loopback = "::", "::1"
	}
	if healthz, err = withPort(s.healthz, everywhere, 10256); err != nil {
		return "", "", fmt.Errorf("healthzBindAddress: %w", err)
	}
	if metrics, err = withPort(s.metrics, loopback, 10249); err != nil {
		return "", "", fmt.Errorf("metricsBindAddress: %w", err)
	}
	return healthz, metrics, nil
}

// withPort completes an address that may lack the port, or all.
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
