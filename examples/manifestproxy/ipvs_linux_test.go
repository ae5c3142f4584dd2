//go:build ipvs

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

// These tests need a kernel with IPVS.

// TestIPVS checks that the files are served by IPVS, with the scheduler of the Service's annotation,
// and that a new process adopts everything.
func TestIPVS(t *testing.T) {
	n := newNetwork(t)
	path := filepath.Join(t.TempDir(), "web.yaml")
	manifest := demo(t)
	write(t, path, manifest)
	choice := []string{"-backend", "ipvs"}
	p := n.start(t, flags(path, choice...)...)
	p.Await("msg=sync", "full=true", "ports=1")
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)
	n.wantAnswers(t, nodePort, endpoint1, endpoint2)
	n.wantScheduler(t, "rr")

	write(t, path, replace(t, manifest, "metadata:\n  name: web\n", "metadata:\n  name: web\n  annotations: {vipkit.github.io/ipvs-scheduler: sed}\n"))
	p.Await("msg=sync", "full=false", "changed=1")
	n.wantScheduler(t, "sed")
	write(t, path, replace(t, manifest, "metadata:\n  name: web\n", "metadata:\n  name: web\n  annotations: {vipkit.github.io/ipvs-scheduler: fast}\n"))
	p.Await("served with limits", "default/web", `unknown IPVS scheduler \"fast\"`)
	n.wantScheduler(t, "rr")
	p.Terminate(stopped)
	n.wantAnswers(t, virtualIP, endpoint1, endpoint2)

	n.wantRun(t, flags(path, append([]string{"-once"}, choice...)...), 0, "msg=sync", "full=true", "operations=0 ", "ports=1")
	n.wantRun(t, append([]string{"-cleanup"}, choice...), 0, "all rules are removed")
	n.wantNoConnection(t)
}

// wantScheduler checks the scheduler of the virtual server of the demo.
func (n network) wantScheduler(t *testing.T, want string) {
	t.Helper()
	out, err := netnstest.Run(t, n.NS, "", "ipvsadm", "-Ln")
	if err != nil || !strings.Contains(out, "TCP  "+virtualIP+" "+want+"\n") {
		t.Errorf("ipvsadm: got error %v and\n%s\nwant the scheduler %s", err, out, want)
	}
}
