package stagetest

import (
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/lab"
)

// Row is a client on one side of a node, and a server with many addresses on the
// other. Both have their default route through the node, for IPv4.
type Row struct {
	// Client has the address 192.0.2.2, and the node 192.0.2.1 on that side.
	Client *netns.NS
	// Server answers at port 8080 of Hosts. The node has 10.0.0.1 on that side.
	Server *netns.NS
	// Hosts are addresses of [HostIP], from 2 on.
	Hosts []netip.Addr
}

// NewRow connects a client and a server with the node of a [Stage], by links that are named "clients" and
// "servers" on the node.
func NewRow(l *lab.Lab, hosts int) *Row {
	r := &Row{}
	var addrs strings.Builder
	for i := range hosts {
		r.Hosts = append(r.Hosts, HostIP(v1.IPv4Protocol, 2+i))
		fmt.Fprintf(&addrs, "%v/16 ", r.Hosts[i])
	}
	r.Client = l.Add(lab.Host{
		Name: "clients", Uplink: nodeName, Addrs: "192.0.2.2/24", Gateway: "192.0.2.1/24",
		Sysctls: map[string]string{"net/ipv4/ip_local_port_range": "1024 65535", "net/ipv4/tcp_tw_reuse": "1", "net/ipv4/tcp_syn_retries": "1"},
	})
	r.Server = l.Add(lab.Host{Name: "servers", Uplink: nodeName, Addrs: addrs.String(), Gateway: "10.0.0.1/16", Serve: []uint16{8080}})
	return r
}
