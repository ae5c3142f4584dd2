package kernelspace_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends/kernelspace/hcntest"
	"github.com/vipkit/vipkit/proxy"
)

// That a load balancer cannot be modified is forgotten with the load balancer, and named no more: also if it has
// gone from HNS before its Service has, or is no object of any Service when everything is listed.
func TestModifyWithoutEffectIsForgotten(t *testing.T) {
	for what, gone := range map[string]func(m *machine){
		"with its Service": func(m *machine) { m.apply() },
		"before its Service": func(m *machine) {
			m.RemoveEndpoint(m.ids()[pod(3).String()])
			m.resync() // its only endpoint is missing
			if len(m.LoadBalancers()) != 0 {
				t.Error("got a load balancer, so the test shows nothing")
			}
			m.apply()
		},
		"while no snapshot is known": func(m *machine) {
			for _, b := range m.LoadBalancers() {
				if err := m.DeleteLoadBalancer(t.Context(), b.ID); err != nil {
					t.Error(err)
				}
			}
			m.applied = proxy.Snapshot{}
			m.apply()
		},
	} {
		m := newMachine(t, newest())
		m.apply(service(1, local(1)))
		m.fail(1, hcntest.Fault{Ignored: true}, "ModifyLoadBalancer")
		m.apply(service(1, local(2)))
		m.apply(service(1, local(3)))
		if n := m.Calls()["ModifyLoadBalancer"]; n != 1 {
			t.Errorf("%s: after one without effect: got %d modifications, want 1", what, n)
		}
		isNamed := func() bool { return strings.Contains(fmt.Sprint(m.problems()), "cannot be modified") }
		if !isNamed() {
			t.Errorf("%s: after one without effect: got problems %v, want one", what, m.problems())
		}
		gone(m)
		if isNamed() {
			t.Errorf("%s: gone: got problems %v, want none of modifying", what, m.problems())
		}
		m.apply(service(1, local(1)))
		m.apply(service(1, local(2)))
		if n := m.Calls()["ModifyLoadBalancer"]; n != 2 {
			t.Errorf("%s: another load balancer with the address: got %d modifications, want 2", what, n)
		}
	}
}
