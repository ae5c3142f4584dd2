package nftables_test

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Config{
		New: func(t testing.TB) proxy.Backend {
			b, err := nftables.New(nftables.Options{})
			testenv.NoError(t, err)
			return b
		},
		Faulty: func(t testing.TB, around func(func() error) error) proxy.Backend {
			b, err := nftables.NewFaulty(nftables.Options{}, around)
			testenv.NoError(t, err)
			return b
		},
		Dump: func(t testing.TB) string {
			out, err := nftables.Dump(t.Context())
			testenv.NoError(t, err)
			return out
		},
		Loopback: func() (proxy.Backend, error) {
			return userspace.New(userspace.Options{Capture: userspace.Loopback, Timeouts: userspace.Timeouts{Dial: testenv.DialTimeouts()}})
		},
		Lacks: []backendtest.Capability{
			backendtest.Failover, backendtest.UnfilteredBridges, backendtest.HairpinOff, backendtest.ClosedFirewalls,
		},
		Worlds: backendtest.Worlds(),
		Tables: true,
		Report: backendtest.Report{File: "../../docs/capabilities.md", Column: "nftables", Remarks: map[backendtest.Capability]string{
			backendtest.ClosedFirewalls:   "accept pods there",
			backendtest.UnfilteredBridges: "needs 1",
			backendtest.HairpinOff:        "needs `hairpin_mode` on",
			backendtest.Affinity:          "[^nftaffinity]",
			backendtest.Adoption:          "[^nftrestart]",
		}},
	})
}
