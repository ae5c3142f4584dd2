//go:build !ipvs

package differential

// ipvsKinds returns nothing: the usual kernel of tests has no IPVS.
func ipvsKinds() []kind { return nil }
