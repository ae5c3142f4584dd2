package agent

import (
	"fmt"
	"reflect"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/proxy"
)

const windowsSystem = "windows"

// onWindows reports whether the program runs on Windows.
func (c *config) onWindows() bool { return c.system == windowsSystem }

// checkSystem warns of settings for the other operating system, as nodes with both may share a file or
// a command line. It refuses flags of tasks and of modes that this system does not have.
func (c *config) checkSystem(given map[string]bool, settings []setting) error {
	usual := newConfig(c.system).settings()
	for i, s := range settings {
		system, trait := "Linux", linuxOnly
		if !c.onWindows() {
			system, trait = "Windows", windowsOnly
		}
		isSet := !reflect.DeepEqual(s.value(), usual[i].value()) && s.text() != defaultRootEndpoint
		switch {
		case !s.traits.has(trait), c.onWindows() && s.into == any(&c.DetectLocalMode) && !c.byInterface():
		case given[s.flag] && s.field == "":
			return fmt.Errorf("flag -%s is for %s", s.flag, system)
		case given[s.flag] && c.configFile == "":
			c.warnings = append(c.warnings, fmt.Sprintf("flag -%s is ignored: it is for %s", s.flag, system))
		case isSet && s.field != "" && c.configFile != "":
			c.warnings = append(c.warnings, fmt.Sprintf("field %s is ignored: it is for %s", s.field, system))
		}
	}
	if !c.onWindows() {
		c.Winkernel, c.WindowsRunAsService = v1alpha1.KubeProxyWinkernelConfiguration{}, false // which -write-config-to then omits
	}
	return nil
}

// byInterface reports whether traffic of pods is known by names of interfaces.
func (c *config) byInterface() bool {
	return c.DetectLocalMode == "BridgeInterface" || c.DetectLocalMode == "InterfaceNamePrefix"
}

// windowsTraffic returns which traffic is that of pods. Windows has no names of interfaces for it,
// so settings that need them are those of Linux nodes, with which a file may be shared.
func (c *config) windowsTraffic() (proxy.LocalTraffic, error) {
	if c.byInterface() {
		return proxy.LocalTraffic{}, nil
	}
	return c.localTraffic()
}
