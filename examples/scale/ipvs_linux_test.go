//go:build ipvs

package main

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// TestIPVSReport is TestReport on a kernel with IPVS. A service has an address, a virtual server and
// three entries of sets, an endpoint a real server; both endpoints of a change are written.
func TestIPVSReport(t *testing.T) {
	netnstest.NeedNamespaces(t)
	c := reportCase{"ipvs", []string{"-floor"}, []string{"floorColdMs", "floorChangeP50Us"}, 5*services + services*endpoints, 0, 2}
	c.run(t)
}
