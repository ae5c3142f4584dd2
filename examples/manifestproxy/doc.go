// Command manifestproxy is a service proxy for a node without a cluster: it
// reads Services and EndpointSlices from files, makes them work on this machine
// and follows the files as they change.
//
//	go build ./examples/manifestproxy
//	sudo ./manifestproxy -manifests examples/manifestproxy/demo -node node-1 -cluster-cidr 10.244.0.0/16 -nodeport-addresses all
//
// What it does is done by four parts of the library, put together in main.go:
//
//	manifest.Source -> proxy.ServiceChangeTracker -> proxy.Runner -> nftables, or iptables
//
// With -backend userspace the program carries the traffic itself instead, for as
// long as it runs: see package userspace. Services then stand still between two
// runs, and -once makes no sense. How it gets at the packets is the matter of
// -capture; -cleanup wants the same one. With -drain, a program that is told to end
// lets its connections end first, for as long as that says, and leaves new ones to
// a successor; without one, they are dropped meanwhile. A second signal ends the
// waiting.
//
// # Starting and stopping
//
// The rules are those of the network namespace that the program runs in; it
// takes CAP_NET_ADMIN to write them. Ended by SIGINT or SIGTERM it leaves them
// in the kernel, so that services go on working while it is replaced; the next
// start takes them over and writes only what differs. With -cleanup it removes
// them, and nothing else, and ends.
//
// With -once it programs what the files say and ends. The exit status is 0 if
// that was everything. It is 1 if a document could not be read, if something in
// an object cannot be honoured or if a service port was not programmed; all the
// rest is programmed nevertheless. The status of bad flags is 2.
//
// While it runs, a document that breaks takes nothing down: its objects stay as
// they were. A program that has just started, with or without -once, has not
// seen them before, so they are gone until the document is good.
//
// A new file whose Service wants an address that another one has takes nothing from
// it, and is an object problem. When the program starts, the file that was changed
// first comes first: see package manifest.
//
// With nftables and iptables, UDP and SCTP flows to endpoints that are gone are removed from
// the kernel's memory, so that clients who go on sending get to the others.
//
// # Node ports
//
// Unless told otherwise, node ports answer at the primary addresses of the node,
// one a family. The files tell them if there is a Node object with the name of
// this node, else -node-ip must; without either there are no node ports. Both
// -nodeport-addresses all and a list of prefixes do without: the kernel knows
// which addresses are the node's.
//
// # Health and metrics
//
// With -healthz-bind-address the program answers /healthz and /livez as kube-proxy
// does, and with -metrics-bind-address it tells Prometheus what it does, by
// kube-proxy's names and some of its own. The health check node ports of
// Services are served without a flag. Nothing is served with -once.
//
// # Log
//
// The log goes to standard error, a line an event. Each sync has one:
//
//	level=INFO msg=sync full=false changed=1 operations=4 took=412µs ports=3
//
// It says whether all was compared with the kernel or only what changed, how many
// service ports were looked at, what that took, and how many ports there are; if
// it failed, also err. What is wrong with a file ("manifest problem") or in an
// object ("object problem") is logged once when it appears, and once when it is
// gone. So are settings of the node with which connections to Services fail, with the
// remedy; they are looked at with each sync, and at least once a minute. -v 1 adds what
// was read, -v 2 each service port that changed.
package main
