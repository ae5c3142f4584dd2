// Command kubeproxy replaces kube-proxy on a node. It reads kube-proxy's configuration,
// watches the API server, and serves health checks, metrics and a page that explains where a
// packet is sent, and why.
//
//	kubeproxy -config /var/lib/kube-proxy/config.conf -hostname-override node-1
//
// Without -config, the program supports the flags that kube-proxy has for fields of its
// configuration; -help groups them, and docs/configuration.md has all flags and fields. Values are
// checked as kube-proxy checks them. Warnings in the log name unknown fields, with the nearest known
// name, and fields and flags that are ignored. Defaults are those of kube-proxy, except that
// minSyncPeriod is 0: a sync does not wait. -write-config-to writes the configuration in effect to a
// file and exits. docs/feature-gates.md says what each feature gate of kube-proxy does here.
//
// nodePortAddresses takes any mix of primary, localhost, all and CIDRs.
//
// # Loopback addresses
//
// Node ports answer at the loopback addresses that nodePortAddresses names, TCP and UDP, to processes of
// the node: localhost is 127.0.0.1 and ::1, and a CIDR of one address, such as 127.0.0.7/32, is that
// address. In mode iptables they also answer at 127.0.0.1 if all addresses are selected, as by default,
// or a CIDR contains it, such as 0.0.0.0/1, since that is so in kube-proxy; iptables.localhostNodePorts: false turns all of that off in this mode. In
// mode nftables, the feature gate KubeProxyNFTablesLocalhostNodePorts turns it off if it is set to
// false. In mode ipvs they answer where they are named.
//
// The program itself listens there, as package userspace says, and does not set the sysctl
// route_localnet: node ports answer at loopback addresses only while it runs. Where another program has a
// port, the log and the debug page say so, and /healthz does not depend on it. In mode nftables /metrics
// has kube-proxy's kubeproxy_nftables_localhost_nodeport_listeners and
// kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total, with the label ip_family; in
// other modes they begin with vipkit_loopback_node_port_. There is no counter of rejected
// packets, as none are rejected. The log and the debug page name Services
// whose node ports of SCTP would answer at loopback addresses.
//
// # Changes of the configuration
//
// The program reads a changed file within seconds, and at SIGHUP. It applies logging.verbosity and the
// section conntrack, where 0 or false leaves a parameter as it is. If other fields have changed, it names them in
// the log and ends with status 0, so what runs it must start it anew also then, as a DaemonSet does. The
// rules stay in the kernel, and the next start adopts them. As a service of Windows, it ends with an
// error, since the service manager would not start it otherwise. A file with errors is not applied: the
// log has the errors, and the former configuration stays in effect.
//
// # Mode
//
// The mode is nftables, iptables or ipvs; if none is configured, nftables, or iptables on a
// node that does not support nftables. Rules of another mode and of kube-proxy are removed once
// the mode serves all Services but those that it refuses, so that no connection fails. Modes
// iptables and ipvs use the flavour of the programs without a suffix, iptables-nft or
// iptables-legacy, and do not read the other one: if kube-proxy has used that, run -cleanup
// first.
//
// Mode ipvs reads the section ipvs: scheduler, strictARP, the timeouts and the periods; masquerading
// is as the section iptables says, as in kube-proxy. With the scheduler mh the client's port counts
// too, as in kube-proxy; with mh,mh-fallback it does not. The annotation
// vipkit.github.io/ipvs-scheduler of a Service chooses its scheduler. -service-metrics adds
// connections, packets and bytes of each Service to /metrics. If the node lacks a part of IPVS, such
// as the kernel module ip_vs, the log names it, and the agent serves in the next mode that the node
// supports, nftables or iptables.
//
// Open TCP connections of mode ipvs go on when a Service no longer has their endpoint: for 15 minutes
// at most, or for -ipvs-drain-timeout, where a negative duration ends them at once. kube-proxy's
// mode ipvs waits without limit. They end when the Service is deleted, as in kube-proxy, and when
// the agent has changed to another mode.
//
// Virtual servers of kube-proxy's own mode ipvs are adopted in mode ipvs, with their connections. In
// the other modes they go once the agent serves, and their connections end. Virtual servers of
// kube-proxy at addresses of ipvs.excludeCIDRs stay.
// -cleanup ends open connections of mode ipvs: it removes virtual servers at once. With -cleanup
// -cleanup-ipvs=false, what this mode has programmed stays.
//
// # Windows
//
//	kubeproxy.exe -config C:\k\config.conf -hostname-override node-1 -network-name l2bridge0
//
// The mode is kernelspace, also if none is configured, or userspace, which kube-proxy does not have.
// The agent was tried with a simulated HNS, and as a program of Windows under Wine, not on a Windows
// host.
//
// Mode kernelspace reads the section winkernel, or kube-proxy's flags -network-name, -source-vip,
// -enable-dsr, -root-hnsendpoint-name (cbr0 if it is empty) and -forward-healthcheck-vip. The name of
// the HNS network may be in the variable KUBE_NETWORK; until a CNI plugin has made that network, the
// agent waits. An overlay network needs -source-vip. In other networks, detectLocalMode NodeCIDR says that
// only pods of this node have addresses of the Node's pod ranges: no EndpointSlice takes such an address from a pod
// that is about to start. Where HNS or the network has no IPv6, Services are
// served at their addresses of IPv4 only, and the log has one line about it. Periods are those of the
// section iptables.
// /metrics counts calls of HNS that failed: kubeproxy_sync_proxy_rules_winkernel_lb_create_failures_total,
// and the same with update and delete. Their label error is the HRESULT. Their label lb_type is
// ClusterIP, NodePort or ExternalIP, which includes addresses of load balancers.
//
// Mode userspace adds addresses to an interface, which -interface names; -netsh has the program netsh
// add them. Services work only while the program runs.
//
// With -windows-service, or windowsRunAsService, the program runs as a service of Windows. A service
// has no console, so its log is lost unless a program that keeps it starts the agent.
//
// Windows has no connection tracking that the agent could use: its parameters are ignored, with a
// warning in the log, and so are all flags and fields that are for Linux. A flag for the other operating
// system that is not the flag of a field is an error. What the agent has made is recorded in the folder
// vipkit of %ProgramData%, which must survive a restart: in a HostProcess container it is that of the
// host. With -cleanup, the agent removes what is recorded there; in mode userspace it needs the -interface
// and -netsh with which it ran.
//
// # Starting, stopping, failing
//
// When the program ends by SIGINT or SIGTERM, or is killed, it leaves the rules in the
// kernel, and the next start adopts them: an unchanged restart writes nothing. While the
// API server is unreachable, the rules are unchanged. Changes of the Node (addresses,
// zone, pod ranges) take effect at once. With -cleanup the program removes all rules, those
// of kube-proxy too, and exits.
//
// # Privileges
//
// The program needs CAP_NET_ADMIN. In mode ipvs, or if kube-proxy has used its mode ipvs, it also
// needs CAP_NET_RAW, as the match set of iptables does; so it does if kube-proxy or other
// programs use iptables-legacy. Parameters of connection tracking, and in
// mode ipvs those of IPVS, ARP and forwarding, need more privileges if /proc/sys is read-only,
// as in a container: -init-only sets them and exits. Without its parameters, mode ipvs does not serve. They
// stay after -cleanup and when another mode serves. The folder deploy has a DaemonSet with both steps, and cleanup.yaml for one that runs
// -cleanup on all nodes.
//
// The program lists and watches Services, EndpointSlices, Nodes and ServiceCIDRs, creates Events, and
// changes no object; deploy/rbac.yaml has these permissions.
//
// # Events
//
// Events have the controller kube-proxy, and those of kube-proxy its reasons:
//
//	Node     Starting                          the program starts
//	         FailedToStartProxierHealthcheck   the port of the health checks is not listening
//	         FailedToStartMetricServer         the port of the metrics is not listening
//	         ServedWithLimits                  several Services have the same limit
//	Service  FailedToStartServiceHealthcheck   its health check node port is not listening here
//	         FieldIgnored                      a field is invalid, or another Service has the address
//	         ServedWithLimits                  the mode serves it, but not quite as it requests
//	         NotProgrammed                     this node's kernel refuses ports of it
//
// kube-proxy writes the second and the third only with bindAddressHardFail. Its warnings that modes of
// kube-proxy change (KubeProxyDefaultMode, IPVSDeprecation) do not apply here.
//
// An Event is written when its cause is found. As long as the cause is there, the Event is written again within
// 20 minutes after the API server has forgotten it, by default after an hour; with more than 20 causes, one in a
// minute. Nodes share the Event of a cause that all find, so the reporting instance is the first node. After a
// restart, causes that are still there have no new Event while the first one exists and the Service is
// unchanged. Syncs do not wait for Events: a node tries to write at most 10 in a minute, 20 in the first one. Of each
// kind, 1000 Services count, 100 of a namespace; /debug/services has all. While the API server is away, Events
// wait; those whose cause ends meanwhile are not written. If the permission is missing, the log says
// so once.
//
// # Pages
//
//	10256  /healthz /livez                   for load balancers and kubelets
//	10249  /                                 lists the paths below
//	       /metrics /proxyMode /healthz      for Prometheus and users
//	       /statusz                          version, start and paths
//	       /configz                          the configuration in effect, in the form of a file as JSON
//	       /flagz                            the flags, with the values in effect
//	       /debug/services                   what is served, and why: HTML, or JSON for
//	                                         clients that accept application/json
//	       /debug/pprof/                     with enableProfiling
//
// /configz, /flagz and paths below /debug/ serve only clients on this node, by URLs with an IP address,
// localhost or the name of the node, and no requests from pages of other sites in a browser on the
// node: they show Services, or how the node is set up, such as paths of files. In kube-proxy, /configz
// and /flagz serve all clients. The other paths serve all clients that can connect, and name no Service,
// except for /metrics with -service-metrics.
//
// /configz has no secrets: credentials are in the kubeconfig, which it names only. It has changes of
// the file that were applied, and no values of fields that are ignored; /flagz leaves out flags that are
// ignored, and a password in -master. /flagz and /statusz are text, or an object of config.k8s.io/v1beta1
// (or v1alpha1) in JSON or YAML for a client that accepts one as kube-proxy's clients do. Without the
// feature gates ComponentFlagz and ComponentStatusz they do not exist.
//
//	curl -H 'Accept: application/json;as=Statusz;v=v1beta1;g=config.k8s.io' 127.0.0.1:10249/statusz
//
// The version in /statusz and in the metric vipkit_build_info is that of the module of this program, not
// of Kubernetes; build_date is the time of the commit. There is no kubernetes_build_info: alerts that
// compare the versions of Kubernetes components by it, such as KubeVersionMismatch of kubernetes-mixin,
// would fire as long as the program runs.
package main
