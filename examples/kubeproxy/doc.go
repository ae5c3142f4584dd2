// Command kubeproxy takes the place of kube-proxy on a node. It reads kube-proxy's
// configuration, watches the API server, and serves health checks, metrics and a
// page that answers why a packet goes where it goes.
//
//	kubeproxy -config /var/lib/kube-proxy/config.conf -hostname-override node-1
//
// Without -config, the flags that kube-proxy has for fields of its configuration
// work. What means nothing here is named in the log and ignored. Defaults are those of
// kube-proxy, but for minSyncPeriod: a sync does not wait unless that says so.
// -write-config-to writes what is in effect to a file and ends. Of feature gates, one means
// something here: AllowServiceExternalIPs; where it is false, external IPs are not served.
//
// # Mode
//
// The mode is nftables or iptables; where none is configured, the first that works
// here. Rules of another mode and of kube-proxy are removed once everything
// is served without them, so that nobody notices the change. Mode iptables uses what
// the plain names of the programs stand for, iptables-nft or iptables-legacy, and does
// not look at the other one: where kube-proxy has used that, run -cleanup before it.
//
// # Starting, stopping, failing
//
// Ended by SIGINT or SIGTERM, or killed, the program leaves the rules in the kernel,
// and the next start takes them over: an unchanged restart writes nothing. While the
// API server is away, everything stays as it is. Changes of the Node (addresses,
// zone, pod ranges) take effect at once. With -cleanup the program removes all
// rules, those of kube-proxy too, and ends.
//
// # Privileges
//
// Running takes CAP_NET_ADMIN. Where kube-proxy or others use iptables-legacy, it takes
// CAP_NET_RAW, too, which is what that program needs. Parameters of connection tracking
// take more where /proc/sys is read-only, as in a container: -init-only sets them and
// ends. The folder deploy has both as a DaemonSet.
//
// Of the API server the program lists and watches Services, EndpointSlices, Nodes and
// ServiceCIDRs, and changes nothing; deploy/rbac.yaml allows that.
//
// # Pages
//
//	10256  /healthz /livez                   for load balancers and kubelets
//	10249  /metrics /proxyMode /healthz      for Prometheus and people
//	       /debug/services                   what is served, and why: HTML, or JSON to
//	                                         whom accepts application/json
//	       /debug/pprof/                     with enableProfiling
//
// What is below /debug/ answers clients on this node alone, by URLs with an IP address,
// localhost or the name of the node, and no pages of other sites that a browser on the node
// shows. What else there is names no Service, and answers everybody who gets there.
package main
