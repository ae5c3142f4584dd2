//go:build !ipvs

package differential

import "github.com/vipkit/vipkit/internal/testing/testenv"

// cost is what limits how many tests run at once.
const cost = testenv.Namespaces

// ipvsKinds returns nothing: the usual kernel of tests has no IPVS.
func ipvsKinds() []kind { return nil }
