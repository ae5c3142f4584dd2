package e2e_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestEvents checks the Events of two agents in a cluster of their own, which have only the permissions of
// examples/kubeproxy/deploy, and their pages about themselves.
func TestEvents(t *testing.T) {
	c := newCluster(t, "nftables", "iptables")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of the agents:\n%s\n%s", c.nodes[0].logTail(), c.nodes[1].logTail())
		}
	})
	c.makeService("first", v1.ServiceSpec{ExternalIPs: []string{"192.0.2.77"}})
	health := c.makeService("health", v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: v1.ServiceExternalTrafficPolicyLocal})
	port := health.Spec.HealthCheckNodePort
	taken, err := c.nodes[0].ns.Listen(t.Context(), "tcp", fmt.Sprintf("%s:%d", c.nodes[0].addresses[0].Addr(), port))
	testenv.NoError(t, err)
	defer taken.Close() //nolint:errcheck // nothing connects
	bad := c.makeService("second", v1.ServiceSpec{ExternalIPs: []string{"192.0.2.77"}})
	c.startAgents()
	want := []string{
		"Node node-1 Normal Starting by kube-proxy-node-1", "Node node-2 Normal Starting by kube-proxy-node-2",
		"Service health Warning FailedToStartServiceHealthcheck by kube-proxy-node-1", "Service second Warning FieldIgnored",
	}
	c.wantEvents(want, bad)
	c.wantAgentPages()

	c.restartAgents()
	want = append(want, want[:2]...) // the starts, and nothing else
	slices.Sort(want)
	c.wantEvents(want, bad)

	c.forbidEvents()
	for i := range 5 {
		c.makeService(fmt.Sprint("third", i), v1.ServiceSpec{ExternalIPs: []string{"192.0.2.77"}})
	}
	n := c.nodes[0]
	eventually(t, "the log says that Events are refused", func() error {
		text, err := os.ReadFile(n.logPath())
		if refusals := strings.Count(string(text), "Event not written"); err == nil && refusals < 4 {
			err = fmt.Errorf("got %d lines about single Events at verbosity 1, want four after the first refusal", refusals)
		}
		if lines := strings.Count(string(text), "Events are not written"); err == nil && lines != 1 {
			err = fmt.Errorf("got %d lines, want one", lines)
		}
		return err
	})
	c.wantEvents(want, bad)
}

// wantEvents waits for exactly these Events. The Event of the Service second has its UID and names the other Service.
func (c *cluster) wantEvents(want []string, bad *v1.Service) {
	c.t.Helper()
	eventually(c.t, "the Events are written", func() error {
		var got []string
		list, err := c.client.EventsV1().Events("default").List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.ReportingController != "kube-proxy" {
				continue // the API server's own
			}
			line := e.Regarding.Kind + " " + e.Regarding.Name + " " + e.Type + " " + e.Reason
			if e.Reason != "FieldIgnored" { // either node is first
				line += " by " + e.ReportingInstance
			} else if e.Regarding.UID != bad.UID || !strings.Contains(e.Note, "192.0.2.77:80/TCP already belongs to Service default/first") {
				return fmt.Errorf("got UID %s, note %q", e.Regarding.UID, e.Note)
			}
			got = append(got, line)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
}

// wantAgentPages requests the pages about the program.
func (c *cluster) wantAgentPages() {
	c.t.Helper()
	for _, n := range c.nodes {
		for path, part := range map[string]string{
			"/": "/statusz", "/configz": `"mode":"` + n.mode + `"`, "/flagz": "proxy-mode=" + n.mode, "/statusz": "Up: 0 hr",
			"/metrics": `rest_client_requests_total{code="201",host="` + apiAddress + `",method="POST"}`,
		} {
			eventually(c.t, n.name+" serves "+path, func() error {
				status, body, err := get(n.ns, "http://127.0.0.1:10249"+path)
				if err == nil && (status != http.StatusOK || !strings.Contains(body, part)) {
					err = fmt.Errorf("got status %d: %.2000s, want %s", status, body, part)
				}
				return err
			})
		}
	}
}

// restartAgents restarts the agents, and waits until they have applied everything.
func (c *cluster) restartAgents() {
	c.t.Helper()
	for _, n := range c.nodes {
		n.stopAgent(syscall.SIGTERM)
		n.startAgent(c.program)
		n.awaitSync()
	}
}

// forbidEvents takes the permission to create Events from the agents.
func (c *cluster) forbidEvents() {
	c.t.Helper()
	roles := c.client.RbacV1().ClusterRoles()
	role, err := roles.Get(c.t.Context(), "vipkit-kubeproxy", metav1.GetOptions{})
	testenv.NoError(c.t, err)
	for i := range role.Rules {
		if slices.Contains(role.Rules[i].Resources, "events") {
			role.Rules = slices.Delete(role.Rules, i, i+1)
			break
		}
	}
	if _, err := roles.Update(c.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "the API server knows the new role", func() error {
		review, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(c.t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               "system:serviceaccount:" + deployNamespace + ":vipkit-kubeproxy",
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "events.k8s.io", Resource: "events", Verb: "create", Namespace: "default"},
		}}, metav1.CreateOptions{})
		if err == nil && review.Status.Allowed {
			err = errors.New("got the permission, want none")
		}
		return err
	})
}

// scrape returns the type and the names of the labels of each metric that the proxy of a node has, by name.
func (n *node) scrape(t *testing.T) map[string]string {
	t.Helper()
	var all map[string]*dto.MetricFamily
	eventually(t, n.name+" has metrics", func() error {
		status, body, err := get(n.ns, "http://127.0.0.1:10249/metrics")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("got status %d: %s", status, body)
		}
		if err == nil {
			parser := expfmt.NewTextParser(model.UTF8Validation)
			all, err = parser.TextToMetricFamilies(strings.NewReader(body))
		}
		return err
	})
	described := map[string]string{}
	for name, family := range all {
		labels := map[string]bool{}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		described[name] = fmt.Sprint(strings.ToLower(family.GetType().String()), slices.Sorted(maps.Keys(labels)))
	}
	return described
}

// wantMetrics checks that dashboards and alerts find what kube-proxy had, except what the packages prommetrics
// and kubeproxy name. They do not use the metrics of the libraries of an API server, nor all metrics of Go.
func (n *node) wantMetrics(t *testing.T, kubeProxy map[string]string) {
	t.Helper()
	used := regexp.MustCompile("^(kubeproxy|rest_client|process|kubernetes|go_goroutines|go_threads|go_info|go_memstats)_?")
	documented := []string{"kubeproxy_iptables_ct_state_invalid_dropped_packets_total", "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
		"kubernetes_build_info"}
	got, compared := n.scrape(t), 0
	for _, name := range slices.Sorted(maps.Keys(kubeProxy)) {
		if !used.MatchString(name) || slices.Contains(documented, name) {
			continue
		}
		compared++
		if want := kubeProxy[name]; got[name] != want {
			t.Errorf("%s, mode %s: metric %s: got %q, want %q as of kube-proxy", n.name, n.mode, name, got[name], want)
		}
	}
	if compared < 50 {
		t.Errorf("%s: got %d metrics to compare, want at least 50", n.name, compared)
	}
	t.Logf("%s, mode %s: %d metrics of kube-proxy compared", n.name, n.mode, compared)
}
