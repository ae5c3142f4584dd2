// Package health serves health checks for kubelets and load balancers: whether the proxy
// works, whether its node should get new connections, and how many endpoints of a
// Service the node has. The replies are byte for byte the replies of kube-proxy.
//
// # The proxy
//
// A [Server] serves two paths and no others, for any method:
//
//	/healthz  200 if the proxy works and its node is eligible, else 503
//	/livez    200 if the proxy works, else 503
//
// The body has details. With 200, the first lastUpdated is the
// time of the reply, as load balancers know it from old versions of kube-proxy:
//
//	{"lastUpdated":"2026-05-04T03:02:01Z","currentTime":"2026-05-04T03:02:01Z","nodeEligible":true,"healthy":true,
//	 "status":{"IPv4":{"lastUpdated":"2026-05-04T03:01:42Z","healthy":true},"IPv6":{"lastUpdated":"2026-05-04T03:01:42Z","healthy":true}}}
//
// The proxy works if, within the timeout, the whole dataplane was found right (rewritten, or
// verified; a failed attempt, or a change alone, does not count), and no change has waited
// longer to be programmed. Service ports that the dataplane refuses do not make the proxy
// unhealthy unless it refuses all. Before the first snapshot nothing is late: a node
// that starts while the API server is down stays healthy. When the dataplane was last found right, and
// whether the backend waits for changes of other programs, is on the page of package inspect, since
// the body has only kube-proxy's fields.
//
// A node is eligible unless its object is unknown, is being deleted, or has the
// taint ToBeDeletedByClusterAutoscaler.
//
// # The Services
//
// A Service of type LoadBalancer with the Local traffic policy has a health check
// node port. There the status is 200 if the node has ready endpoints
// of the Service and the proxy works, else 503; the header
// X-Load-Balancing-Endpoint-Weight has their number in either case. It counts the addresses of
// the endpoints of all ports of the Service that the dataplane has.
//
// The ports are open at the addresses of node ports. If those are all addresses, one socket
// serves both families. The endpoints that count are of the family of the request; a single-stack
// Service has only one. A port that another program uses is reported once, and retried;
// it does not affect the others.
//
// Every host that reaches the node may connect. So replies take bounded time, and of more than
// a thousand connections the oldest are closed. At most a quarter of the file descriptors that
// the process may have (RLIMIT_NOFILE when Run is called) are sockets of Services, and a
// sixteenth connections: 5,000 health check node ports at one address need a limit of 20,000.
// Above that, Services are reported, and retried as those whose port is in use. Address and Pages come first.
package health
