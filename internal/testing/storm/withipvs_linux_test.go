//go:build ipvs

package storm

// testedIPVS returns the names of the backend ipvs: this kernel has IPVS.
func testedIPVS() []string { return ipvsNames() }
