// Package lab builds networks of hosts for tests on the kernel of this machine: nodes, pods, clients and
// bridges, each host a network namespace, with servers and with rules of other programs. [New] takes them
// as one literal:
//
//	l := lab.New(t,
//		lab.Host{Name: "node"},
//		lab.Host{Name: "client", Uplink: "node", Addrs: "192.0.2.10/24", Gateway: "192.0.2.1/24"},
//		lab.Host{Name: "pod", Uplink: "node", Addrs: "10.244.1.11/32", Serve: []uint16{8080}},
//	)
//	a, err := lab.Ask(t.Context(), l.NS("client"), "tcp", "10.244.1.11:8080")
//
// An [Answer] says which server has answered, and which source address it has seen.
//
// Nothing is left over. The lab ends with its test. The namespaces have no names, so they end with the
// process, too, if it panics or is killed.
//
// On other systems than Linux the package is empty.
package lab
