package main

import (
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/proxy"
)

const windowsSystem = "windows"

// onWindows reports whether the program runs on Windows.
func (c *config) onWindows() bool { return c.system == windowsSystem }

// defineForWindows defines the flags of fields and settings for Windows.
func (c *config) defineForWindows(f *flag.FlagSet) {
	w := &c.Winkernel
	usage := func(field string) string { return ofField + field + " of KubeProxyConfiguration, on Windows" }
	f.StringVar(&w.NetworkName, "network-name", w.NetworkName, usage("winkernel.networkName"))
	f.StringVar(&w.SourceVIP, "source-vip", w.SourceVIP, usage("winkernel.sourceVip"))
	f.BoolVar(&w.EnableDSR, "enable-dsr", w.EnableDSR, usage("winkernel.enableDSR"))
	f.StringVar(&w.RootHNSEndpointName, "root-hnsendpoint-name", defaultRootEndpoint, usage("winkernel.rootHnsEndpointName"))
	f.BoolVar(&w.ForwardHealthCheckVIP, "forward-healthcheck-vip", w.ForwardHealthCheckVIP, usage("winkernel.forwardHealthCheckVip"))
	f.BoolVar(&c.WindowsRunAsService, "windows-service", c.WindowsRunAsService, usage("windowsRunAsService"))
	f.StringVar(&c.addAt.Interface, "interface", "", "`name` of the interface to which mode userspace adds addresses on Windows "+
		"(default the value of the variable INTERFACE_TO_ADD_SERVICE_IP, or else vEthernet (HNS Internal NIC))")
	f.BoolVar(&c.addAt.Netsh, "netsh", false, "on Windows, add these addresses by the program netsh, not by the IP helper API")
}

// checkSystem refuses flags for the other operating system. Sections of a configuration file that
// are for the other one are noted, as nodes with both may share the file. So are flags of connection
// tracking, which Windows lacks.
func (c *config) checkSystem(f *flag.FlagSet) (err error) {
	f.Visit(func(x *flag.Flag) {
		isFor := forSystem(x.Name)
		switch {
		case strings.HasPrefix(x.Name, "conntrack-") && c.onWindows():
			c.notes = append(c.notes, fmt.Sprintf("flag -%s is ignored on Windows", x.Name))
		case err == nil && isFor == windowsSystem && !c.onWindows():
			err = fmt.Errorf("flag -%s is for Windows", x.Name)
		case err == nil && isFor == "linux" && c.onWindows():
			err = fmt.Errorf("flag -%s is for Linux", x.Name)
		}
	})
	if err != nil {
		return err
	}
	if c.onWindows() {
		c.noteSections()
		return nil
	}
	if c.configFile != "" && !slices.Contains([]winkernelConfig{{}, {RootHNSEndpointName: defaultRootEndpoint}}, c.Winkernel) {
		c.notes = append(c.notes, "field winkernel is ignored: it is for Windows")
	}
	if c.WindowsRunAsService {
		c.notes = append(c.notes, "field windowsRunAsService is ignored: it is for Windows")
	}
	c.Winkernel, c.WindowsRunAsService = winkernelConfig{}, false // which -write-config-to then omits
	return nil
}

// forSystem returns the operating system that a flag is for; empty for both.
func forSystem(name string) string {
	switch name {
	case "network-name", "source-vip", "enable-dsr", "root-hnsendpoint-name", "forward-healthcheck-vip", "windows-service", "interface", "netsh":
		return windowsSystem
	case "cleanup-ipvs", "service-metrics", "init-only", "masquerade-all", "iptables-masquerade-bit",
		"detect-local-mode", "pod-bridge-interface", "pod-interface-name-prefix":
		return "linux"
	}
	if strings.HasPrefix(name, "ipvs-") {
		return "linux"
	}
	return ""
}

// noteSections notes sections of the file that are for Linux.
func (c *config) noteSections() {
	usual := defaults()
	for _, s := range []struct {
		section      string
		given, usual any
	}{
		{"conntrack", c.Conntrack, usual.Conntrack},
		{"ipvs", c.IPVS, usual.IPVS},
	} {
		if c.configFile != "" && !reflect.DeepEqual(s.given, s.usual) {
			c.notes = append(c.notes, fmt.Sprintf("field %s is ignored: it is for Linux", s.section))
		}
	}
}

// windowsTraffic returns which traffic is that of pods. Windows has no names of interfaces for it,
// so settings that need them are those of Linux nodes, with which a file may be shared.
func (p *pods) windowsTraffic() (proxy.LocalTraffic, error) {
	if p.DetectLocalMode == "BridgeInterface" || p.DetectLocalMode == "InterfaceNamePrefix" {
		return proxy.LocalTraffic{}, nil
	}
	return p.localTraffic()
}
