package agent

import (
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	maxPort  = math.MaxUint16
	maxInt32 = math.MaxInt32
)

func (c *config) tracking() []setting {
	t := &c.Conntrack
	all := []setting{
		{field: "conntrack.maxPerCore", flag: "conntrack-max-per-core", into: t.MaxPerCore, check: between(t.MaxPerCore, 0, maxInt32),
			help: "How many flows are tracked for each CPU of the node; 0 leaves the limit, and the minimum has no effect."},
		{field: "conntrack.min", flag: "conntrack-min", into: t.Min, check: between(t.Min, 0, maxInt32), help: "How many flows are tracked at least."},
		{field: "conntrack.tcpEstablishedTimeout", flag: "conntrack-tcp-timeout-established", into: t.TCPEstablishedTimeout, check: notNegative(t.TCPEstablishedTimeout),
			help: "When idle TCP connections end; 0 leaves that to the kernel."},
		{field: "conntrack.tcpCloseWaitTimeout", flag: "conntrack-tcp-timeout-close-wait", into: t.TCPCloseWaitTimeout, check: notNegative(t.TCPCloseWaitTimeout),
			help: "When TCP connections in state CLOSE_WAIT end; 0 leaves that to the kernel."},
		{field: "conntrack.tcpBeLiberal", flag: "conntrack-tcp-be-liberal", into: &t.TCPBeLiberal, help: "Packets outside of the TCP window count as valid; false leaves that to the kernel."},
		{field: "conntrack.udpTimeout", flag: "conntrack-udp-timeout", into: &t.UDPTimeout, check: notNegative(&t.UDPTimeout),
			help: "When flows of UDP without answer end; 0 leaves that to the kernel."},
		{field: "conntrack.udpStreamTimeout", flag: "conntrack-udp-timeout-stream", into: &t.UDPStreamTimeout, check: notNegative(&t.UDPStreamTimeout),
			help: "When flows of UDP with answers end; 0 leaves that to the kernel."},
	}
	for n := range all {
		all[n].traits |= linuxOnly | isLive
	}
	return all
}

func (c *config) windows() []setting {
	w := &c.Winkernel
	all := []setting{
		{field: "winkernel.networkName", flag: "network-name", into: &w.NetworkName, help: "The name of the HNS network of the pods; if empty, that in the variable KUBE_NETWORK."},
		{field: "winkernel.sourceVip", flag: "source-vip", into: &w.SourceVip, help: "The source address of traffic to pods of other nodes, in an overlay network."},
		{field: "winkernel.enableDSR", flag: "enable-dsr", into: &w.EnableDSR, help: "Answers of endpoints go to the client directly (DSR)."},
		{field: "winkernel.rootHnsEndpointName", flag: "root-hnsendpoint-name", into: &w.RootHnsEndpointName, help: "The name of the HNS endpoint of the node; if empty, " + defaultRootEndpoint + "."},
		{field: "winkernel.forwardHealthCheckVip", flag: "forward-healthcheck-vip", into: &w.ForwardHealthCheckVip, help: "Serve health check node ports at addresses of load balancers, too."},
		{field: "windowsRunAsService", flag: "windows-service", into: &c.WindowsRunAsService, help: "Run as a service of Windows."},
		{flag: "interface", into: &c.Addresses.Interface,
			help: "The interface to which mode userspace adds addresses; if empty, that in the variable INTERFACE_TO_ADD_SERVICE_IP, or else vEthernet (HNS Internal NIC)."},
		{flag: "netsh", into: &c.Addresses.Netsh, help: "Add these addresses by the program netsh, not by the IP helper API."},
	}
	for n := range all {
		all[n].traits |= windowsOnly
	}
	return all
}

func (c *config) loggingSettings() []setting {
	return []setting{
		{field: "logging.verbosity", flag: "v", into: &c.Logging.Verbosity, traits: beatsFile | isLive,
			help: "Log more: 1 each sync, 2 and above also what client-go logs at these levels."},
		{field: "logging.format", flag: "logging-format", into: &c.Logging.Format, traits: beatsFile, check: c.checkFormat, help: "The form of the log: text or json."},
	}
}

func (c *config) tasks() []setting {
	return []setting{
		{flag: "config", into: &c.configFile, help: "The path of a KubeProxyConfiguration; flags of its fields do not count then, except -v, -logging-format and -hostname-override."},
		{flag: "write-config-to", into: &c.writeTo, help: "Write the configuration in effect to this path, then exit."},
		{flag: "cleanup", into: &c.cleanup, help: "Remove all rules, kube-proxy's too, then exit."},
		{flag: "cleanup-ipvs", into: &c.cleanupIPVS, traits: linuxOnly, help: "With -cleanup, also remove what mode ipvs has programmed."},
		{flag: "init-only", into: &c.initOnly, traits: linuxOnly, help: "Set the kernel's parameters that need more privileges than CAP_NET_ADMIN, then exit."},
		{flag: "version", into: &c.version, help: "Print the version, then exit; raw prints what the program was built from, too."},
	}
}

// ignoredSettings returns the settings of kube-proxy that have no effect. Their values are checked all the same.
func ignoredSettings() []setting {
	oomScore, every := new(int32), new(metav1.Duration)
	all := []setting{
		{field: "bindAddressHardFail", flag: "bind-address-hard-fail", into: new(bool), usual: "false", help: "End if a port is in use; this program tries again and logs it."},
		{field: "clientConnection.acceptContentTypes", into: new(string), help: "The forms of answers of the API server, which are protobuf, or else JSON."},
		{field: "clientConnection.contentType", flag: "kube-api-content-type", into: new(string), usual: "application/vnd.kubernetes.protobuf", help: "The form of requests to the API server, which is protobuf."},
		{field: "configSyncPeriod", flag: "config-sync-period", into: every, usual: "15m0s", check: notNegative(every), help: "How often all objects are handled again, which this program need not do."},
		{field: "logging.flushFrequency", flag: "log-flush-frequency", into: new(any), usual: "5s", help: "How often the log is written; this program writes each line at once."},
		{field: "logging.options", into: new(any), help: "Where lines of the log go, and how many bytes are kept back."},
		{flag: "log-json-info-buffer-size", into: new(string), usual: "0", help: "How many bytes of the log are kept back."},
		{flag: "log-json-split-stream", into: new(bool), usual: "false", help: "Errors and other lines of the log go to different streams."},
		{flag: "log-text-info-buffer-size", into: new(string), usual: "0", help: "How many bytes of the log are kept back."},
		{flag: "log-text-split-stream", into: new(bool), usual: "false", help: "Errors and other lines of the log go to different streams."},
		{flag: "logtostderr", into: new(bool), usual: "true", help: "The log goes to the standard error stream, as always here."},
		{field: "logging.vmodule", flag: "vmodule", into: new(any), help: "The verbosity of single source files."},
		{field: "oomScoreAdj", flag: "oom-score-adj", into: oomScore, usual: "-999", check: between(oomScore, -1000, 1000), help: "How the kernel rates the program when memory is short; use the field of the container or of the service."},
		{field: "portRange", into: new(string), help: "Ports of a mode that kube-proxy has no more."},
		{field: "showHiddenMetricsForVersion", flag: "show-hidden-metrics-for-version", into: new(string), help: "Metrics that a version has hidden; this program hides none."},
		{field: "udpIdleTimeout", into: new(any), help: "A timeout of a mode that kube-proxy has no more."},
	}
	for n := range all {
		all[n].traits |= isIgnored
	}
	return all
}
