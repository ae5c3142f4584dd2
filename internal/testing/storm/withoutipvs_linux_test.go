//go:build !ipvs

package storm

// testedIPVS returns nothing: the usual kernel of tests has no IPVS.
func testedIPVS() []string { return nil }
