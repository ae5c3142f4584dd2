//go:build !ipvs

package storm

import "github.com/vipkit/vipkit/internal/testing/testenv"

// cost is what limits how many tests run at once.
const cost = testenv.Storms

// testedIPVS returns nothing: the usual kernel of tests has no IPVS.
func testedIPVS() []string { return nil }
