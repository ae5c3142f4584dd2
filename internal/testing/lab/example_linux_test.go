package lab_test

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/lab"
)

// A node whose pods are on a bridge, which masquerades packets that leave the cluster.
func Example() {
	var t *testing.T // the argument of your test
	masqueraded(t, os.Stdout)
}

func masqueraded(t *testing.T, out io.Writer) {
	t.Helper()
	const bridge = "10.244.1.1/24"
	l := lab.New(t,
		lab.Host{Name: "node", Rules: `table ip cni {
			chain out { type nat hook postrouting priority srcnat; ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade; }
		}`},
		lab.Host{Name: "outside", Uplink: "node", Addrs: "192.0.2.10/24", Gateway: "192.0.2.1/24", Behind: "0.0.0.0/0", Serve: []uint16{80}},
		lab.Host{Name: "pod", Uplink: "node", Bridge: "cni0", Addrs: "10.244.1.11/24", Gateway: bridge},
		lab.Host{Name: "pod2", Uplink: "node", Bridge: "cni0", Addrs: "10.244.1.12/24", Gateway: bridge, Serve: []uint16{8080}},
	)
	for _, to := range []string{"192.0.2.10:80", "10.244.1.12:8080"} {
		a, err := lab.Ask(t.Context(), l.NS("pod"), "tcp", to)
		_, _ = fmt.Fprintln(out, a.Name, "sees", a.Client.Addr(), err)
	}
}

func TestExample(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	masqueraded(t, &out)
	if want := "outside sees 192.0.2.1 <nil>\npod2 sees 10.244.1.11 <nil>\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
