package agent

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/backends/ipvs"
)

// setting is a field of kube-proxy's configuration, a flag, or both. Flags, files, -help,
// -write-config-to, warnings and docs/configuration.md follow the table of all settings.
type setting struct {
	field  string // path in KubeProxyConfiguration; empty if only a flag sets it
	flag   string // empty if only a file sets it
	help   string // one sentence, without the field and the default
	into   any    // points to the value; [setting.define] knows the types
	traits traits
	check  func() error // nil if all values of the type are valid
	usual  string       // of an ignored setting: kube-proxy's default, which needs no warning
}

// traits are what applies to a setting besides its value.
type traits uint8

const (
	isIgnored    traits = 1 << iota
	linuxOnly           // without effect on Windows; if there is no field, the flag is an error
	windowsOnly         // the same on Linux
	beatsFile           // the flag counts although there is a file
	yieldsToFile        // the flag has no field, and does not count if there is a file
	isLive              // a change of the file is applied without a new start
)

func (t traits) has(x traits) bool { return t&x != 0 }

// group is a group of settings in -help.
type group struct {
	title    string
	settings []setting
}

// groups returns all settings.
func (c *config) groups() []group {
	n, i := &c.NFTables, &c.IPTables
	nftables := append(masquerading(nftablesMode, &n.MasqueradeAll, n.MasqueradeBit), periods(nftablesMode, &n.SyncPeriod, &n.MinSyncPeriod)...)
	iptables := append(masquerading(iptablesMode, &i.MasqueradeAll, i.MasqueradeBit), periods(iptablesMode, &i.SyncPeriod, &i.MinSyncPeriod)...)
	return []group{
		{"What is served", c.services()},
		{"Traffic of pods", c.podSettings()},
		{"Where the program listens", c.listening()},
		{"Kubernetes", c.kubernetes()},
		{"Mode nftables", nftables},
		{"Mode iptables; without a file, mode nftables, too", append(iptables, c.localhostNodePorts())},
		{"Mode ipvs", c.ipvsSettings()},
		{"Connection tracking", c.tracking()},
		{"Windows", c.windows()},
		{"Logging", c.loggingSettings()},
		{"Files, and tasks after which the program exits", c.tasks()},
		{"Ignored, as kube-proxy has them", ignoredSettings()},
	}
}

// settings returns all settings in one list.
func (c *config) settings() (all []setting) {
	for _, g := range c.groups() {
		all = append(all, g.settings...)
	}
	return all
}

// find returns the setting of a field.
func find(all []setting, field string) (*setting, bool) {
	if i := slices.IndexFunc(all, func(s setting) bool { return s.field == field }); i >= 0 {
		return &all[i], true
	}
	return nil, false
}

func (c *config) services() []setting {
	return []setting{
		{field: "mode", flag: "proxy-mode", into: (*string)(&c.Mode),
			help: "How Services are served: nftables, iptables or ipvs, on Windows kernelspace or userspace; if empty, the best one of the node."},
		{field: "nodePortAddresses", flag: "nodeport-addresses", into: &c.NodePortAddresses,
			help: "Where node ports answer: primary, localhost, all and CIDRs, separated by commas."},
		{field: "featureGates", flag: "feature-gates", into: &c.FeatureGates,
			help: "Feature gates as NAME=true or NAME=false, separated by commas; docs/feature-gates.md has all."},
		{flag: "local-fallback", into: &c.LocalFallback,
			help: "Endpoints of a Local traffic policy if no local one is ready: terminating, none or cluster."},
		{flag: "service-metrics", into: &c.ServiceMetrics, traits: linuxOnly,
			help: "In mode ipvs, count connections, packets and bytes of each Service in /metrics, which names them to all its clients."},
	}
}

func (c *config) podSettings() []setting {
	return []setting{
		{field: "detectLocalMode", flag: "detect-local-mode", into: (*string)(&c.DetectLocalMode), traits: linuxOnly,
			help: "How traffic of pods is recognized: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix."},
		{field: "clusterCIDR", flag: "cluster-cidr", into: &c.ClusterCIDR, help: "Ranges of pod addresses, separated by commas."},
		{field: "detectLocal.bridgeInterface", flag: "pod-bridge-interface", into: &c.DetectLocal.BridgeInterface, traits: linuxOnly,
			help: "The name of the bridge of the pods."},
		{field: "detectLocal.interfaceNamePrefix", flag: "pod-interface-name-prefix", into: &c.DetectLocal.InterfaceNamePrefix, traits: linuxOnly,
			help: "What the names of the interfaces of pods begin with."},
	}
}

func (c *config) listening() []setting {
	return []setting{
		{field: "healthzBindAddress", flag: "healthz-bind-address", into: &c.HealthzBindAddress,
			help: "Address and port of /healthz and /livez; if empty, port 10256 of all addresses."},
		{flag: "healthz-port", into: &c.healthzPort, traits: yieldsToFile, check: between(&c.healthzPort, 0, maxPort),
			help: "The port of /healthz and /livez if their address has none; 0 turns them off. It does not count with -config."},
		{field: "metricsBindAddress", flag: "metrics-bind-address", into: &c.MetricsBindAddress,
			help: "Address and port of /metrics and the debug pages; if empty, port 10249 of the loopback address."},
		{flag: "metrics-port", into: &c.metricsPort, traits: yieldsToFile, check: between(&c.metricsPort, 0, maxPort),
			help: "The port of /metrics and the debug pages if their address has none; 0 turns them off. It does not count with -config."},
		{field: "enableProfiling", flag: "profiling", into: &c.EnableProfiling, help: "Serve profiles at /debug/pprof/, to clients on the node."},
	}
}

func (c *config) kubernetes() []setting {
	return []setting{
		{field: "hostnameOverride", flag: "hostname-override", into: &c.HostnameOverride, traits: beatsFile,
			help: "The name of the Node; if empty, the host name."},
		{field: "bindAddress", flag: "bind-address", into: &c.BindAddress,
			help: "The address of the node as long as its Node has none; nothing listens there."},
		{field: "clientConnection.kubeconfig", flag: "kubeconfig", into: &c.ClientConnection.Kubeconfig,
			help: "The path of the kubeconfig; if empty, the service account of the pod counts."},
		{flag: "master", into: &c.master, help: "The URL of the API server, in place of that in the kubeconfig."},
		{field: "clientConnection.qps", flag: "kube-api-qps", into: &c.ClientConnection.QPS, check: finite(&c.ClientConnection.QPS), help: "How many requests per second are sent to the API server."},
		{field: "clientConnection.burst", flag: "kube-api-burst", into: &c.ClientConnection.Burst, check: between(&c.ClientConnection.Burst, 0, maxInt32),
			help: "How many requests are sent to the API server without a pause."},
	}
}

// masquerading returns settings of the section of a mode; there are flags of the section iptables alone.
func masquerading(mode string, all *bool, bit *int32) []setting {
	settings := []setting{
		{field: mode + ".masqueradeAll", into: all, traits: linuxOnly, help: "Masquerade all traffic to ClusterIPs."},
		{field: mode + ".masqueradeBit", into: bit, traits: linuxOnly, check: between(bit, 0, 31), help: "The bit of packet marks for packets to masquerade."},
	}
	if mode == iptablesMode {
		settings[0].flag, settings[1].flag = "masquerade-all", "iptables-masquerade-bit"
	}
	return settings
}

// periods returns settings of the section of a mode; there are no flags of the section nftables.
func periods(mode string, sync, minSync *metav1.Duration) []setting {
	settings := []setting{
		{field: mode + ".syncPeriod", flag: mode + "-sync-period", into: sync,
			help: "How often the rules are verified; if 0, every second in mode nftables and every 30 seconds in others."},
		{field: mode + ".minSyncPeriod", flag: mode + "-min-sync-period", into: minSync, help: "How long a sync waits after the last one."},
	}
	if mode == nftablesMode {
		settings[0].flag, settings[1].flag = "", ""
	}
	return settings
}

func (c *config) localhostNodePorts() setting {
	return setting{field: "iptables.localhostNodePorts", flag: "iptables-localhost-nodeports", into: c.IPTables.LocalhostNodePorts, traits: linuxOnly,
		help: "In mode iptables, node ports answer at loopback addresses: at 127.0.0.1 if nodePortAddresses selects all addresses or a CIDR contains it, and at the ones that it names."}
}

func (c *config) ipvsSettings() []setting {
	i := &c.IPVS
	all := []setting{
		{field: "ipvs.scheduler", flag: "ipvs-scheduler", into: &i.Scheduler,
			help: "The scheduler of Services without the annotation " + ipvs.SchedulerAnnotation + "; if empty, rr."},
		{field: "ipvs.excludeCIDRs", flag: "ipvs-exclude-cidrs", into: &i.ExcludeCIDRs,
			help: "Ranges of virtual servers of kube-proxy that stay."},
		{field: "ipvs.strictARP", flag: "ipvs-strict-arp", into: &i.StrictARP, help: "Answer ARP requests only for addresses of the interface that receives them."},
		{field: "ipvs.tcpTimeout", flag: "ipvs-tcp-timeout", into: &i.TCPTimeout, help: "When idle TCP connections end; 0 leaves that to the kernel."},
		{field: "ipvs.tcpFinTimeout", flag: "ipvs-tcpfin-timeout", into: &i.TCPFinTimeout, help: "When TCP connections end after a FIN; 0 leaves that to the kernel."},
		{field: "ipvs.udpTimeout", flag: "ipvs-udp-timeout", into: &i.UDPTimeout, help: "When flows of UDP end; 0 leaves that to the kernel."},
		{flag: "ipvs-drain-timeout", into: &c.DrainTimeout, traits: linuxOnly,
			help: "How long open TCP connections go on if the Service no longer has their endpoint; a negative duration ends them at once."},
	}
	all = append(all, periods(ipvsMode, &i.SyncPeriod, &i.MinSyncPeriod)...)
	for n := range all {
		all[n].traits |= linuxOnly
	}
	return all
}
