// Package kernelspace programs the virtual IPs of Services into the virtual switch of Windows, by
// load balancers of the Host Networking Service (HNS).
//
// It was tried with a simulated HNS (package hcntest beside it), not on a Windows host.
//
// The package has nothing of Windows in it. A [hcn.Client] makes the calls; the comment of package
// hcn says how to write one.
//
// # What is in HNS
//
// Each frontend is a load balancer: an address, a protocol and a port, with the endpoints of pods.
// Those of this node's pods belong to the CNI plugin; for each pod of another node the backend makes
// a remote endpoint. In an overlay network it also makes one for each ClusterIP, and one with the
// address that load balancers send from. docs/dataplane/kernelspace.md has the flags.
//
// # What a change writes
//
// The backend keeps a mirror of what HNS holds. A replaced endpoint is one endpoint made, the load
// balancer modified and read back, and one endpoint deleted, whatever else there is. Where HNS cannot
// modify, or says that it did and did not, load balancers are deleted and made again.
//
// If a call fails, Apply names the service port, and all others are programmed; the next Apply continues. What cannot
// be deleted is tried again with growing pauses, and serves nobody meanwhile: an endpoint goes only after all load
// balancers that use it. A call that fails may have taken effect, so what it was about is read again.
//
// # What is listed, and when
//
// Everything is listed at the start, after HNS notifies of a network or has ended, with growing
// pauses while an object is pending, and at the first resync after five minutes
// (Drifted of [proxy.Abilities]). An object is pending if it could not be read or deleted, if HNS
// refused a load balancer of health checks, or if an overlay network has no remote subnet for an address
// yet. A query that fails changes nothing.
//
// After HNS notifies of endpoints, and with growing pauses while endpoints do not exist yet, it is read which endpoints there are: one call, and one for each new endpoint. Load balancers are not read, and change
// only if an endpoint that they use has gone or was replaced, or one that they need has appeared.
//
// # After a restart
//
// Load balancers have no names. Their IDs are in [Options.StateFile], and before HNS is called, what is
// about to be made; endpoints have names that begin with the name of the identity. What is there already and fits is adopted without a write, whoever has
// made it: also what kube-proxy has left. Load balancers that no Service needs are removed if their IDs
// are in the file, and otherwise stay. Nothing is wiped.
//
// # Limits
//
// HNS has one list of endpoints for an address and port, for all clients. CheckLimits of [proxy.Abilities] names
// what it cannot do for a Service: a timeout of session affinity, several target ports,
// source ranges, refusals without endpoints, other endpoints for clients inside the cluster.
package kernelspace
