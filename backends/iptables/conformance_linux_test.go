package iptables_test

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }

func TestConformance(t *testing.T) {
	for _, flavour := range []iptables.Flavour{iptables.Legacy, iptables.NFT} {
		t.Run(string(flavour), func(t *testing.T) { testConformance(t, iptables.Options{Flavour: flavour}) })
	}
}

func testConformance(t *testing.T, o iptables.Options) {
	iptables.NeedPrograms(t, o)
	backendtest.Run(t, backendtest.Config{
		New: func(t testing.TB) proxy.Backend {
			testenv.NoError(t, iptables.Prepare(t.Context(), o))
			b, err := iptables.New(o)
			testenv.NoError(t, err)
			return b
		},
		Faulty: func(t testing.TB, around func(func() error) error) proxy.Backend {
			testenv.NoError(t, iptables.Prepare(t.Context(), o))
			b, err := iptables.NewFaulty(o, around)
			testenv.NoError(t, err)
			return b
		},
		Dump: func(t testing.TB) string {
			out, err := iptables.Dump(t.Context(), o)
			testenv.NoError(t, err)
			return out
		},
		Loopback: func() (proxy.Backend, error) {
			return userspace.New(userspace.Options{Capture: userspace.Loopback, Timeouts: userspace.Timeouts{Dial: testenv.DialTimeouts()}})
		},
		Lacks: []backendtest.Capability{
			backendtest.Failover, backendtest.UnfilteredBridges, backendtest.HairpinOff, backendtest.ClosedFirewalls,
			backendtest.FirewalledRefusals,
		},
		Worlds: backendtest.Worlds(),
		Report: backendtest.Report{File: "../../docs/capabilities.md", Column: "iptables", Remarks: map[backendtest.Capability]string{
			backendtest.ClosedFirewalls:    "accept pods there",
			backendtest.UnfilteredBridges:  "needs 1",
			backendtest.FirewalledRefusals: "depends on the foreign table[^flavour]",
			backendtest.HairpinOff:         "needs `hairpin_mode` on",
			backendtest.Affinity:           "[^iptaffinity]",
		}},
	})
}
