//go:build ipvs

package storm

import "github.com/vipkit/vipkit/internal/testing/testenv"

// cost is what limits how many tests run at once.
const cost = testenv.IPVS

// testedIPVS returns the names of the backend ipvs: this kernel has IPVS.
func testedIPVS() []string { return ipvsNames() }
