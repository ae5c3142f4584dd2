package main

import (
	"path/filepath"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// TestLimits checks that the log and a metric report session affinity, which iptables keeps
// only for a limited number of clients, while a Service has it.
func TestLimits(t *testing.T) {
	t.Parallel()
	netnstest.Program(t, "iptables-restore")
	n := newNetwork(t)
	path := filepath.Join(t.TempDir(), "web.yaml")
	manifest := demo(t)
	write(t, path, replace(t, manifest, "  clusterIP: 10.96.0.10", "  clusterIP: 10.96.0.10\n  sessionAffinity: ClientIP"))
	p := n.start(t, append(flags(path, "-backend", "iptables"), "-metrics-bind-address", "127.0.0.1:9102")...)
	p.Await(`level=ERROR msg="served with limits"`, "object=default/web", "field=spec.sessionAffinity", "ip_list_tot")
	const page = "http://127.0.0.1:9102/metrics"
	p.AwaitPage(page, "vipkit_service_port_limits 1")
	write(t, path, manifest)
	p.Await(`level=INFO msg="served with limits resolved"`, "object=default/web")
	p.AwaitPage(page, "vipkit_service_port_limits 0")
	p.Terminate(stopped)
}
