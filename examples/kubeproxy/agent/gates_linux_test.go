package agent

import "testing"

// TestExternalIPsByFeatureGate checks that external IPs are not served with the feature gate
// off, also if the agent before has served them.
func TestExternalIPsByFeatureGate(t *testing.T) {
	t.Parallel()
	const externalIP, off = "198.51.100.9:80", "-feature-gates=AllowServiceExternalIPs=false"
	w := newWorld(t, "mode: nftables\n")
	web := service("web", "10.96.0.10")
	web.Spec.ExternalIPs = []string{"198.51.100.9"}
	w.api.put("services", web)
	byFlags := []string{"-proxy-mode", "nftables", "-kubeconfig", w.kubeconfig, "-hostname-override", "node-1", "-conntrack-max-per-core", "0", "-conntrack-min", "0"}
	for _, c := range []struct {
		flags []string
		want  string
	}{{byFlags, "8080"}, {append(byFlags, off), ""}, {byFlags, "8080"}, {[]string{"-config", w.configure(t, "featureGates: {AllowServiceExternalIPs: false}\n"), "-hostname-override", "node-1"}, ""}} {
		p := start(t, w.node.NS, c.flags...)
		p.Await("msg=serving")
		w.wantAnswer(virtualIP, "8080")
		w.wantAnswer(externalIP, c.want)
		p.Terminate(stopped)
	}
}
