package userspace_test

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Files)) }

func TestConformance(t *testing.T) {
	conform(t, "userspace", userspace.TPROXY, backendtest.ForeignMarks, backendtest.HostMarks,
		backendtest.ReversePathFilter6, backendtest.RestoredMarks, backendtest.PolicyRouting)
}

func TestConformanceRedirect(t *testing.T) {
	conform(t, "userspace, redirect", userspace.Redirect, backendtest.ClientAddresses)
}

// conform runs the conformance suite for a capture, which has a column in docs/capabilities.md.
func conform(t *testing.T, column string, capture userspace.Capture, lacks ...backendtest.Capability) {
	start := func(t testing.TB, open func(userspace.Options) (*userspace.Backend, error)) proxy.Backend {
		b, err := open(userspace.Options{Capture: capture, Timeouts: userspace.Timeouts{Dial: testenv.DialTimeouts()}})
		testenv.NoError(t, err)
		return unforked{b}
	}
	backendtest.Run(t, backendtest.Config{
		New: func(t testing.TB) proxy.Backend { return start(t, userspace.New) },
		Faulty: func(t testing.TB, around func(func() error) error) proxy.Backend {
			return start(t, func(o userspace.Options) (*userspace.Backend, error) { return userspace.NewFaulty(o, around) })
		},
		Dump: func(t testing.TB) string {
			out, err := userspace.Dump(t.Context(), capture)
			testenv.NoError(t, err)
			return out
		},
		Loopback: func() (proxy.Backend, error) {
			return userspace.New(userspace.Options{Capture: userspace.Loopback, Timeouts: userspace.Timeouts{Dial: testenv.DialTimeouts()}})
		},
		Lacks:  append(lacks, backendtest.LastingConnections, backendtest.BridgedAddresses, backendtest.SCTP),
		Worlds: backendtest.Worlds(),
		Tables: true,
		Report: backendtest.Report{File: "../../docs/capabilities.md", Column: column, Remarks: map[backendtest.Capability]string{
			backendtest.LastingConnections: "they end with the process",
		}},
	})
}

// unforked is a backend that closes its listeners while no program starts, which would have them open.
type unforked struct{ *userspace.Backend }

func (b unforked) Close() error { return testenv.Close(b.Backend) }
