//go:build ipvs

package ipvs_test

import (
	"testing"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// The emulated processor of the virtual machine is slow, so that the other kinds of nodes, and the
// table of capabilities, which has them, are tested only if the environment has VIPKIT_IPVS_WORLDS.
func TestConformance(t *testing.T) {
	o := ipvs.Options{}
	c := backendtest.Config{
		New: func(t testing.TB) proxy.Backend {
			testenv.NoError(t, ipvs.Prepare(t.Context(), o))
			b, err := ipvs.New(o)
			testenv.NoError(t, err)
			return b
		},
		Faulty: func(t testing.TB, around func(func() error) error) proxy.Backend {
			testenv.NoError(t, ipvs.Prepare(t.Context(), o))
			b, err := ipvs.NewFaulty(o, around)
			testenv.NoError(t, err)
			return b
		},
		Dump: func(t testing.TB) string {
			out, err := ipvs.Dump(t.Context(), o)
			testenv.NoError(t, err)
			return out
		},
		Loopback: func() (proxy.Backend, error) {
			return userspace.New(userspace.Options{Capture: userspace.Loopback, Timeouts: userspace.Timeouts{Dial: testenv.DialTimeouts()}})
		},
		Lacks: []backendtest.Capability{
			backendtest.Failover, backendtest.OtherPorts, backendtest.FrontendAffinity, backendtest.AffinityTimeout,
			backendtest.NodeAddresses, backendtest.Fragments, backendtest.UnfilteredBridges, backendtest.HairpinOff, backendtest.RestoredMarks,
			backendtest.PolicyFlows,
		},
	}
	if testenv.Flag(t, "VIPKIT_IPVS_WORLDS") {
		c.Worlds = backendtest.Worlds()
		c.Report = backendtest.Report{File: "../../docs/capabilities.md", Column: "ipvs", Remarks: map[backendtest.Capability]string{
			backendtest.FrontendAffinity:  "until the endpoints change",
			backendtest.AffinityTimeout:   "may last longer",
			backendtest.UnfilteredBridges: "needs 1",
			backendtest.RestoredMarks:     "from the node to itself",
			backendtest.HairpinOff:        "needs `hairpin_mode` on",
		}}
	}
	backendtest.Run(t, c)
}
