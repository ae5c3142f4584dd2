package agent

import (
	"fmt"
	"reflect"

	"k8s.io/kube-proxy/config/v1alpha1"
)

const windowsSystem = "windows"

// onWindows reports whether the program runs on Windows.
func (c *config) onWindows() bool { return c.system == windowsSystem }

// checkSystem warns of settings for the other operating system, as nodes with both may share a file or
// a command line. It refuses flags of tasks and of modes that this system does not have.
func (c *config) checkSystem(given arguments, settings []setting) (errs []error) {
	usual, system := newConfig(c.system).settings(), "Windows"
	if c.onWindows() {
		system = "Linux"
	}
	for i, s := range settings {
		isSet := !reflect.DeepEqual(s.value(), usual[i].value()) && s.text() != defaultRootEndpoint
		switch {
		case !c.isForOther(s):
		case given[s.flag] != nil && s.field == "":
			errs = append(errs, fmt.Errorf("flag -%s is for %s", s.flag, system))
		case given[s.flag] != nil && c.configFile == "":
			c.warnings = append(c.warnings, fmt.Sprintf("flag -%s is ignored: it is for %s", s.flag, system))
		case isSet && s.field != "" && c.configFile != "":
			c.warnings = append(c.warnings, fmt.Sprintf("field %s is ignored: it is for %s", s.field, system))
		}
	}
	if !c.onWindows() {
		c.Winkernel, c.WindowsRunAsService = v1alpha1.KubeProxyWinkernelConfiguration{}, false // which -write-config-to then omits
	}
	return errs
}

// isForOther reports whether a setting is for the other operating system. Windows has only some of the values
// of detectLocalMode.
func (c *config) isForOther(s setting) bool {
	if !c.onWindows() {
		return s.traits.has(windowsOnly)
	}
	isShared := s.field == "detectLocalMode" && c.DetectLocalMode != bridgeInterface && c.DetectLocalMode != interfaceNamePrefix
	return s.traits.has(linuxOnly) && !isShared
}
