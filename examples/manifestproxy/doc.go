// Command manifestproxy is a service proxy for a node without a cluster: it reads
// Services and EndpointSlices from files, serves them on this node and watches the files
// for changes.
//
//	go build ./examples/manifestproxy
//	sudo ./manifestproxy -manifests examples/manifestproxy/demo -node node-1 -cluster-cidr 10.244.0.0/16 -nodeport-addresses all
//
// To see it without files, without a cluster and without a change to this machine:
//
//	go run ./examples/manifestproxy -demo
//
// That runs it in a network namespace of its own, with the Service in demo and two servers
// behind it, sends requests to the ClusterIP and shows who answers. Root is not needed if
// users may make user namespaces.
//
// main.go combines four parts of the library:
//
//	manifest.Source -> proxy.ServiceChangeTracker -> proxy.Runner -> nftables, iptables or ipvs
//
// With -backend userspace the program itself forwards the traffic while it runs: see
// package userspace. Services then do not work between two runs, and -once is an error.
// -capture says how packets get to it; -cleanup needs the same value. With -drain, a
// program that gets SIGINT or SIGTERM waits that long at most until its connections have
// ended, while a successor accepts new ones; without a successor, new ones are dropped
// meanwhile. A second signal ends the waiting.
//
// On Windows, -backend userspace adds the addresses of Services to an interface, which -interface
// names, and listens at them; -netsh has the program netsh add them. Run it as an administrator.
//
// With -backend ipvs the kernel's IPVS balances the connections. -scheduler says how, for all
// Services without the annotation vipkit.github.io/ipvs-scheduler, which chooses the
// scheduler of one Service. -service-metrics adds connections, packets and bytes of each Service to
// /metrics. With -once, endpoints that were removed and have open connections
// stay, and get no new ones, until a program runs that removes them when they are not needed.
//
// With -ip-families ipv4, or ipv6, the backend serves one family only, as on a node whose kernel lacks
// the other. What was programmed for the other one stays; -cleanup without the flag removes it.
//
// # ClusterIPs
//
// A Service without spec.clusterIP gets one from the ranges of -service-cidr, which package
// allocator chooses; the log shows it. The file -allocations keeps it for the Service until the
// Service is deleted, so that it is the same after a new start. The addresses of Services that were
// deleted while the program did not run are freed after the first pass that read everything without
// an error and found a Service: a document that cannot be read may have the Service. Addresses
// that files name are not allocated. Without -service-cidr such a Service is an error. One
// process uses the file at a time. A Service that waits for it, for a free address, or for a disk
// that is full, is tried again each second.
//
// # Starting and stopping
//
// The program writes the rules of its network namespace, and needs CAP_NET_ADMIN for
// that. When it ends by SIGINT or SIGTERM it leaves them in the kernel, so that Services
// work while it is replaced; the next start adopts them and writes only differences. With
// -cleanup it removes them, and nothing else, and exits.
//
// With -once it programs the files and exits. The exit status is 0 if everything was
// programmed. It is 1 if a document could not be read, if something in a document has no effect
// or cannot be honoured, or if a service port was not programmed; everything else is still
// programmed.
// The status of bad flags is 2.
//
// While the program runs, it keeps the objects of a document that becomes invalid. A
// program that has just started, with or without -once, does not have them until the
// document is valid.
//
// If the Service of a new file claims the address of another Service, the other one keeps
// it, and the new one has an object problem. When the program starts, the file that was
// changed first has precedence: see package manifest.
//
// With nftables, iptables and ipvs, the program removes conntrack entries of UDP and SCTP flows
// to removed endpoints, so that clients that continue to send reach the remaining ones.
//
// # Node ports
//
// By default, node ports answer at the primary addresses of the node, one of each family.
// They are those of the Node object with the name of this node, or else of -node-ip; without
// either there are no node ports. Neither is needed with -nodeport-addresses all or a list
// of prefixes: the kernel has the node's addresses. At loopback addresses, which localhost and ranges
// such as 127.0.0.7/32 name, the program itself listens while it runs, as package userspace says, with
// any backend and not with -once. Where another program has a port, the log and the debug page say so.
//
// # Health and metrics
//
// With -healthz-bind-address the program serves /healthz and /livez like kube-proxy, and
// with -metrics-bind-address Prometheus metrics with kube-proxy's names and some of its own and,
// for clients on the node, the debug page at /debug/services.
// It serves the health check node ports of Services without a flag. With -once it serves
// nothing.
//
// # Memory
//
// In a container with a limit, set GOMEMLIMIT to half to two thirds of it. With GOMEMLIMIT=40MiB, 3,000 Services
// of ten endpoints need 64 MiB with nftables, and 96 MiB with iptables, whose programs and rules count too:
// docs/performance.md has figures. Unless GOGC is set, it is 50.
//
// # Log
//
// The log is written to standard error, one line for each event. Each sync has one:
//
//	level=INFO msg=sync full=false changed=1 operations=4 took=412µs ports=3
//
// It says whether the sync compared everything with the kernel or only changes, how many
// service ports it handled, its cost, and how many service ports exist. If it failed, it has
// failed=true, and another line has the error and when the next try is. A problem is logged once
// when it appears, and once when it is resolved: of a file ("manifest problem") or of something in
// it that has no effect, such as a misspelled field ("manifest warning"), both with file and line;
// of an object ("object problem"); of a setting of the node ("node setting breaks Services", checked
// at least once a minute); and of a Service that the backend can serve only in part ("served with
// limits"). As long as the files cannot be read for the first time, or have no Node of the name
// that -node gives and -node-ip does not tell its addresses, lines say so ("waiting"). -v 1 adds
// the numbers of objects that were read, -v 2 each service port that changed.
package main
