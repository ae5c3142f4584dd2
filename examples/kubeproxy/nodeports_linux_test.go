package main

import (
	"net/netip"
	"testing"
)

// TestMixedNodePortAddresses checks that node ports answer at the primary address that the Node object
// has at the time, and that the log names the loopback addresses at which they do not.
func TestMixedNodePortAddresses(t *testing.T) {
	const second = "192.0.2.99"
	for _, mode := range []string{nftablesMode, iptablesMode} {
		t.Run(mode, func(t *testing.T) {
			if mode == iptablesMode {
				need(t, "iptables-restore")
			}
			w := newWorld(t, "mode: "+mode+"\nnodePortAddresses: [primary, localhost]\n")
			if err := w.node.AddAddress("clients", netip.MustParsePrefix(second+"/24")); err != nil {
				t.Fatal(err)
			}
			p := w.start()
			p.Await("level=WARN", "nodePortAddresses: node ports are not served at loopback addresses: 127.0.0.0/8, ::1/128")
			p.Await("msg=serving")
			w.wantAnswer(nodePort, "8080")
			w.wantAnswer(second+":30080", "")
			w.api.put("nodes", node(second))
			w.wantAnswer(second+":30080", "8080")
			w.wantAnswer(nodePort, "")
			p.Terminate(stopped)
		})
	}
}
