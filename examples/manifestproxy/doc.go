// Command manifestproxy shows a whole agent for a node without a cluster: it reads Services and
// EndpointSlices from files, serves them with a backend of your choice, follows changes of the
// files, and has health checks, metrics and a debug page. examples/embed is the shortest such program.
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
//	manifest.Watcher -> proxy.ServiceChangeTracker -> proxy.Runner -> nftables, iptables, ipvs or userspace
//
// With -backend userspace the program itself forwards the traffic while it runs: see
// package userspace. Services then do not work between two runs, and -once is an error.
// On Windows it adds the addresses of Services to an interface, which -interface
// names; -netsh has the program netsh add them. Run it as an administrator.
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
// # Node ports
//
// By default, node ports answer at the primary addresses of the node, one of each family.
// They are those of the Node object with the name of this node, or else of -node-ip; without
// either there are no node ports. Neither is needed with -nodeport-addresses all or a list
// of prefixes: the kernel has the node's addresses. At loopback addresses only examples/kubeproxy
// serves them.
//
// # Memory
//
// In a container with a limit, set GOMEMLIMIT to half to two thirds of it, and GOGC to 50.
// docs/performance.md has figures.
//
// # Log
//
// The log is written to standard error, one line for each event. Each sync has one:
//
//	level=INFO msg=sync full=false changed=1 operations=4 took=412µs ports=3
//
// It says whether the sync compared everything with the kernel or only changes, how many
// service ports it handled, its cost, and how many service ports exist. A problem is logged once
// when it appears, and once when it is resolved: of a file ("manifest problem") or of something in
// it that has no effect, such as a misspelled field ("manifest warning"), both with file and line;
// of an object ("object problem"); of a setting of the node ("node setting breaks Services", checked
// at least once a minute); and of a Service that the backend can serve only in part ("served with
// limits"). As long as the files cannot be read for the first time, or have no Node of the name
// that -node gives and -node-ip does not tell its addresses, lines say so ("waiting").
package main
