package repair_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/repair"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func serviceWith(edit func(*v1.Service)) *v1.Service {
	s := &v1.Service{}
	s.Namespace, s.Name = "default", "web"
	edit(s)
	return s
}

func TestServiceUses(t *testing.T) {
	for _, c := range []struct{ what, got, want string }{
		{"all", texts(serviceWith(func(s *v1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "010.096.0.11", []string{"010.096.0.11", "fd00::1"}
			s.Spec.Ports = []v1.ServicePort{{NodePort: 30053, Protocol: v1.ProtocolTCP}, {NodePort: 30053, Protocol: v1.ProtocolUDP}, {}}
			s.Spec.HealthCheckNodePort = 30001
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: "192.0.2.1"}, {Hostname: "lb"}}
			s.Spec.ExternalIPs = []string{"203.0.113.1"}
		})), "010.096.0.11 fd00::1 | 192.0.2.1 | 30001 30053 | 203.0.113.1"},
		{"from before dual stack", texts(serviceWith(func(s *v1.Service) { s.Spec.ClusterIP = "10.96.0.1" })), "10.96.0.1 |  |  | "},
		{"headless", texts(serviceWith(func(s *v1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = v1.ClusterIPNone, []string{v1.ClusterIPNone}
		})), " |  |  | "},
	} {
		if c.got != c.want {
			t.Errorf("%s: got uses %q, want %q", c.what, c.got, c.want)
		}
	}
}

func texts(s *v1.Service) string {
	u := repair.ServiceUses(s)
	var lists []string
	for _, uses := range [][]repair.Use{u.ClusterIPs, u.LoadBalancerIPs, u.NodePorts, u.ExternalIPs} {
		var list []string
		for _, use := range uses {
			if use.Owner != "default/web" {
				list = append(list, string(use.Owner))
			}
			list = append(list, use.Text)
		}
		lists = append(lists, strings.Join(list, " "))
	}
	return strings.Join(lists, " | ")
}

// An address in an old spelling, which the proxy serves, is held as well, and so never handed out.
func TestOldSpellingsAreHeld(t *testing.T) {
	for _, text := range []string{"010.096.0.11", "::ffff:010.96.0.011"} {
		store := allocator.NewMemory(allocator.State{}, nil)
		service := serviceWith(func(s *v1.Service) { s.Spec.ClusterIPs = []string{text} })
		owners := func(context.Context) ([]repair.Use, error) { return repair.ServiceUses(service).ClusterIPs, nil }
		findings, err := repair.Reconcile(t.Context(), store, owners, repair.Options{Ranges: ranges(t)})
		testenv.NoError(t, err)
		var problems []repair.Problem
		for _, f := range findings {
			problems = append(problems, f.Problem)
		}
		state, err := store.Load(t.Context())
		testenv.NoError(t, err)
		if len(state.Claims) != 1 || state.Claims[0].Key.String() != "10.96.0.11" {
			t.Errorf("%s: got claims %v, want one of 10.96.0.11", text, state.Claims)
		}
		if want := []repair.Problem{repair.Missing, repair.NonCanonical}; !slices.Equal(problems, want) {
			t.Errorf("%s: got %v, want %v", text, findings, want)
		}
	}
}
