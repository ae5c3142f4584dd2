package ipvstakeover_test

import (
	"fmt"

	"github.com/vipkit/vipkit/examples/kubeproxy/ipvstakeover"
)

// Without kube-proxy's device there is nothing to take over.
func Example() {
	fmt.Println(ipvstakeover.Adopt(nil))
	// Output: <nil>
}
