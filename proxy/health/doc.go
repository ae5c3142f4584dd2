// Package health answers kubelets and load balancers: whether the proxy works,
// whether its node should get new connections, and how many endpoints of a
// Service this node has. The answers are byte for byte those of kube-proxy.
//
// # The proxy
//
// A [Server] answers two paths and no others, to any method:
//
//	/healthz  200 if the proxy works and its node is eligible, else 503
//	/livez    200 if the proxy works, else 503
//
// The body says it in detail. In an answer of 200 the first lastUpdated is the
// time of the answer, as load balancers know it from old versions of kube-proxy:
//
//	{"lastUpdated":"2026-05-04T03:02:01Z","currentTime":"2026-05-04T03:02:01Z","nodeEligible":true,"healthy":true,
//	 "status":{"IPv4":{"lastUpdated":"2026-05-04T03:01:42Z","healthy":true},"IPv6":{"lastUpdated":"2026-05-04T03:01:42Z","healthy":true}}}
//
// The proxy works as long as it is not longer ago than the timeout
//
//   - that the whole dataplane was found to be as it must be: written from
//     nothing known, or known to be untouched. Having tried does not count, nor
//     does having added to a dataplane that nobody has looked at since;
//   - and that something new had to be programmed that is not programmed yet.
//
// Service ports that the dataplane refuses do not make a node unhealthy while
// others work. Before there is anything to program, it is not late: a node
// that starts while the API server is away is left alone.
//
// A node is eligible unless its object is unknown, is being deleted, or has the
// taint ToBeDeletedByClusterAutoscaler.
//
// # The Services
//
// A Service of type LoadBalancer with the Local traffic policy has a health check
// node port. The Server answers there with 200 if the node has ready endpoints
// of the Service and the proxy works, else with 503; the header
// X-Load-Balancing-Endpoint-Weight has their number in either case. Endpoints
// are counted by address, those of all ports of the Service together, as the
// dataplane has them: what is not programmed yet does not count.
//
// The ports are open at the addresses that node ports answer at, and follow
// them. All addresses together take one socket for both families, and the
// family of the question is that of the endpoints that count; a single-stack
// Service has only one answer. A port that another program has does not
// disturb the others; it is reported once, and tried again until it is free.
//
// Everybody who reaches the node may ask. So answers take bounded time, and a thousand
// connections at most are open at once: the oldest has to go for a new one.
//
// The process needs file descriptors for other things than answers. So no more than a quarter
// of those that it may have (RLIMIT_NOFILE when Run is called) are sockets of Services, and a
// sixteenth connections: 5,000 health check node ports at one address take a limit of 20,000.
// Above that, Services are served in the order of their names; the others are reported, and
// served when sockets get free. /healthz and pages have theirs before any Service.
package health
