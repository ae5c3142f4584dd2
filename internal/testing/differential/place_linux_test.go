package differential

import (
	"fmt"
	"testing"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// place is a host with a pod, another machine, and another node with an endpoint. All have addresses of both
// families.
type place struct {
	host
	lab     *lab.Lab
	clients map[string]*netns.NS
}

func newPlace(t *testing.T) place {
	t.Helper()
	const node = "node"
	l := lab.New(t,
		// On most nodes the network plugin translates, too. If nobody does, the kernel forgets all translations.
		lab.Host{Name: node, Rules: "table inet plugin { chain post { type nat hook postrouting priority 110; ip saddr 198.51.100.0/24 masquerade; }; }"},
		lab.Host{Name: "pod", Uplink: node, Addrs: "10.244.1.2/24 fd00:244:1::2/64", Gateway: "10.244.1.1/24 fd00:244:1::1/64"},
		// The node has default routes, as nodes do: without any, it could not send to ClusterIPs.
		lab.Host{Name: "outside", Uplink: node, Addrs: "192.0.2.2/24 2001:db8::2/64", Gateway: "192.0.2.1/24 2001:db8::1/64", Behind: "0.0.0.0/0 ::/0"},
		lab.Host{Name: "server", Uplink: node, Addrs: "10.244.2.2/24 fd00:10::2/64", Gateway: "10.244.2.1/24 fd00:10::1/64", Serve: []uint16{8080}},
	)
	p := place{host{l.NS(node)}, l, map[string]*netns.NS{"pod": l.NS("pod"), "outside": l.NS("outside"), "node": l.NS(node)}}
	p.use(t)
	return p
}

// flow is a connection of TCP, or a socket of UDP, to a frontend.
type flow struct {
	*lab.Conn

	name string
}

// openFlows opens a flow from each client to each frontend of web(0).
func (p place) openFlows(t *testing.T) (all []flow) {
	t.Helper()
	for from, ns := range p.clients {
		for _, network := range []string{"tcp", "udp"} {
			for _, to := range frontends(0) {
				f := flow{name: fmt.Sprintf("%s from %s to %s", network, from, to)}
				var err error
				if f.Conn, err = lab.Dial(t.Context(), ns, network, to); err != nil {
					t.Fatalf("%s: %v", f.name, err)
				}
				testenv.CloseAtEnd(t, f)
				if _, err := f.Ask(t.Context()); err != nil {
					t.Fatalf("%s: %v", f.name, err)
				}
				all = append(all, f)
			}
		}
	}
	return all
}
