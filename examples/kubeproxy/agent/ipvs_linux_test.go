package agent

import (
	"os/exec"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/agenttest"
)

// withoutIPTables hides the programs of iptables from a command, also those in directories for administrators.
const withoutIPTables = `for name in iptables-save iptables-restore ip6tables-save ip6tables-restore; do
	file=$(readlink -f "/usr/sbin/$name") && [ -e "$file" ] && mount --bind /dev/null "$file"
done
exec env PATH=/nonexistent "$@"`

// TestIPVSFallback checks that the program serves in the next mode on a node that lacks something
// for mode ipvs: here the programs of iptables, and perhaps IPVS.
func TestIPVSFallback(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "mode: ipvs\n")
	cmd := exec.Command("unshare", "-m", "sh", "-c", withoutIPTables, "sh")
	cmd.Args = append(cmd.Args, agenttest.Command(t, "-config", w.config, "-hostname-override", "node-1").Args...)
	p := agenttest.Start(t, w.node.NS, patience, cmd)
	p.Await("msg=mode", "mode=ipvs", "reason=configured")
	p.Await("mode unsupported on this node; trying the next")
	p.Await("msg=mode", "mode=nftables", "ipvs is unsupported on this node")
	p.Await("msg=serving", "ports=1")
	w.wantAnswer(virtualIP, "8080")
	p.AwaitPage(metrics+"/proxyMode", "200 OK", nftablesMode)
	p.Terminate(stopped)
}
