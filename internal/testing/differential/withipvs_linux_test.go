//go:build ipvs

package differential

import (
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// cost is what limits how many tests run at once.
const cost = testenv.IPVS

// ipvsKinds returns the kind ipvs: this kernel has IPVS.
func ipvsKinds() []kind {
	return []kind{{nameIPVS, func(i backends.Identity) (proxy.Backend, error) { return ipvs.New(ipvs.Options{Identity: i}) }}}
}
