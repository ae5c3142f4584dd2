package hcn_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

func ExampleError() {
	err := fmt.Errorf("node port 30080: %w", &hcn.Error{Op: "HcnCreateLoadBalancer", Code: hcn.CodePortExists})
	fmt.Println(err)
	fmt.Println(errors.Is(err, hcn.ErrExists))
	// Output:
	// node port 30080: HcnCreateLoadBalancer: error 0x803b0013: object already exists
	// true
}

// Every code means one thing, and a plain code of Win32 means the same as its HRESULT.
func TestMeaningOfCodes(t *testing.T) {
	for code, want := range map[uint32]error{
		hcn.CodeNetworkNotFound: hcn.ErrNotFound, hcn.CodeEndpointNotFound: hcn.ErrNotFound,
		hcn.CodePortNotFound: hcn.ErrNotFound, hcn.CodeElementNotFound: hcn.ErrNotFound, 0x490: hcn.ErrNotFound,
		hcn.CodePortExists: hcn.ErrExists, hcn.CodeAlreadyExists: hcn.ErrExists, 0xb7: hcn.ErrExists, hcn.CodeObjectExists: hcn.ErrExists, 0x1392: hcn.ErrExists,
		hcn.CodeNetworkExists: hcn.ErrExists,
		hcn.CodeUnsupported:   hcn.ErrUnsupported, hcn.CodeNotImplemented: hcn.ErrUnsupported, hcn.CodeNotSupported: hcn.ErrUnsupported,
		hcn.CodeRPCUnknown: hcn.ErrUnavailable, 0x6b5: hcn.ErrUnavailable, hcn.CodeRPCUnavailable: hcn.ErrUnavailable,
		hcn.CodeManagerStopped: hcn.ErrUnavailable, hcn.CodeServiceNotRunning: hcn.ErrUnavailable,
		hcn.CodeHasReferences: nil, hcn.CodeAccessDenied: nil, hcn.CodeInvalidParameter: nil, 0: nil, 0x8b001234: nil,
	} {
		err := &hcn.Error{Op: "HcnOp", Code: code, Record: "why"}
		for _, is := range []error{hcn.ErrNotFound, hcn.ErrExists, hcn.ErrUnsupported, hcn.ErrUnavailable} {
			if got := errors.Is(err, is); got != errors.Is(want, is) {
				t.Errorf("%v is %q: got %t, want %t", err, is, got, !got)
			}
		}
	}
}

func TestFeatures(t *testing.T) {
	first := hcn.Features{V2: true, RemoteSubnet: true}
	dsr := first
	dsr.DSR = true
	dual := dsr
	dual.DualStack = true
	affinity := dual
	affinity.SessionAffinity = true
	all := affinity
	all.Modify = true
	for v, want := range map[hcn.Version]hcn.Features{
		{Major: 8, Minor: 99}: {}, {Major: 9, Minor: 1}: {}, {Major: 9, Minor: 2}: first, {Major: 9, Minor: 5}: dsr,
		{Major: 10, Minor: 1}: first, {Major: 10, Minor: 2}: dsr, {Major: 11, Minor: 9}: dsr, {Major: 11, Minor: 10}: dual,
		{Major: 12, Minor: 0}: affinity, {Major: 15, Minor: 4}: affinity, {Major: 15, Minor: 5}: all, {Major: 16, Minor: 0}: all,
	} {
		if diff := cmp.Diff(want, v.Features()); diff != "" {
			t.Errorf("features of %s (-want +got):\n%s", v, diff)
		}
	}
}

func TestLoadBalancerEqual(t *testing.T) {
	a := hcn.LoadBalancer{ID: "1", Endpoints: []string{"x", "y"}, PortMappings: []hcn.PortMapping{{Protocol: 6}}}
	b := hcn.LoadBalancer{ID: "2", Endpoints: []string{"y", "x"}, PortMappings: []hcn.PortMapping{{Protocol: 6}}}
	if !a.Equal(&b) {
		t.Error("another ID and order of endpoints: got different, want equal")
	}
	for what, change := range map[string]func(*hcn.LoadBalancer){
		"endpoint": func(l *hcn.LoadBalancer) { l.Endpoints = []string{"x", "x"} },
		"count":    func(l *hcn.LoadBalancer) { l.Endpoints = []string{"x"} },
		"flags":    func(l *hcn.LoadBalancer) { l.Flags = hcn.DSR },
		"distribution": func(l *hcn.LoadBalancer) {
			l.PortMappings = []hcn.PortMapping{{Protocol: 6, Distribution: hcn.BySource}}
		},
	} {
		c := b
		if change(&c); a.Equal(&c) {
			t.Errorf("another %s: got equal, want different", what)
		}
	}
}
