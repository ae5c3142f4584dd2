package main

// setting is one thing that can be configured.
type setting struct {
	// field is its path in a KubeProxyConfiguration, flag the name of the flag;
	// empty where it has none.
	field, flag string
	// into takes the value; nil where it is ignored.
	into any
	// isBool says of an ignored flag that it stands without a value, too.
	isBool bool
	// wins says that the flag counts although there is a file.
	wins bool
}

// settings are all that there are.
func (c *config) settings() []setting {
	return append([]setting{
		{flag: "config", into: &c.task.configFile, wins: true},
		{flag: "cleanup", into: &c.task.cleanup, wins: true},
		{flag: "init-only", into: &c.task.initOnly, wins: true},
		{flag: "master", into: &c.client.master, wins: true},
		{field: "logging.verbosity", flag: "v", into: &c.verbosity, wins: true},
		{field: "hostnameOverride", flag: "hostname-override", into: &c.hostnameOverride, wins: true},
		{field: "clientConnection.kubeconfig", flag: "kubeconfig", into: &c.client.kubeconfig},
		{field: "clientConnection.qps", flag: "kube-api-qps", into: &c.client.qps},
		{field: "clientConnection.burst", flag: "kube-api-burst", into: &c.client.burst},
		{field: "mode", flag: "proxy-mode", into: &c.mode},
		{field: "bindAddress", flag: "bind-address", into: &c.serving.bindAddress},
		{field: "healthzBindAddress", flag: "healthz-bind-address", into: &c.serving.healthz},
		{field: "metricsBindAddress", flag: "metrics-bind-address", into: &c.serving.metrics},
		{field: "enableProfiling", flag: "profiling", into: &c.serving.profiling},
		{field: "detectLocalMode", flag: "detect-local-mode", into: &c.pods.mode},
		{field: "clusterCIDR", flag: "cluster-cidr", into: &c.pods.clusterCIDR},
		{field: "detectLocal.bridgeInterface", flag: "pod-bridge-interface", into: &c.pods.bridge},
		{field: "detectLocal.interfaceNamePrefix", flag: "pod-interface-name-prefix", into: &c.pods.prefix},
		{field: "nodePortAddresses", flag: "nodeport-addresses", into: &c.nodePorts},
		{field: "iptables.masqueradeAll", flag: "masquerade-all", into: &c.iptables.masqueradeAll},
		{field: "iptables.masqueradeBit", flag: "iptables-masquerade-bit", into: &c.iptables.masqueradeBit},
		{field: "iptables.syncPeriod", flag: "iptables-sync-period", into: &c.iptables.syncPeriod},
		{field: "iptables.minSyncPeriod", flag: "iptables-min-sync-period", into: &c.iptables.minimumInterval},
		{field: "nftables.masqueradeAll", flag: "masquerade-all", into: &c.nftables.masqueradeAll},
		{field: "nftables.masqueradeBit", into: &c.nftables.masqueradeBit},
		{field: "nftables.syncPeriod", flag: "iptables-sync-period", into: &c.nftables.syncPeriod},
		{field: "nftables.minSyncPeriod", flag: "iptables-min-sync-period", into: &c.nftables.minimumInterval},
		{field: "conntrack.maxPerCore", flag: "conntrack-max-per-core", into: &c.conntrack.maxPerCore},
		{field: "conntrack.min", flag: "conntrack-min", into: &c.conntrack.minimum},
		{field: "conntrack.tcpEstablishedTimeout", flag: "conntrack-tcp-timeout-established", into: &c.conntrack.established},
		{field: "conntrack.tcpCloseWaitTimeout", flag: "conntrack-tcp-timeout-close-wait", into: &c.conntrack.closeWait},
		{field: "conntrack.tcpBeLiberal", flag: "conntrack-tcp-be-liberal", into: &c.conntrack.beLiberal},
		{field: "conntrack.udpTimeout", flag: "conntrack-udp-timeout", into: &c.conntrack.udpTimeout},
		{field: "conntrack.udpStreamTimeout", flag: "conntrack-udp-timeout-stream", into: &c.conntrack.udpTimeoutReply},
	}, ignored()...)
}

// ignored are the settings of kube-proxy that mean nothing here.
func ignored() []setting {
	all := []setting{{field: "apiVersion", into: new(string)}, {field: "kind", into: new(string)}}
	for _, field := range [...]string{
		"bindAddressHardFail", "clientConnection.acceptContentTypes", "clientConnection.contentType", "configSyncPeriod",
		"featureGates", "iptables.localhostNodePorts", "ipvs", "logging.flushFrequency", "logging.format", "logging.options",
		"logging.vmodule", "oomScoreAdj", "portRange", "showHiddenMetricsForVersion", "udpIdleTimeout", "windowsRunAsService",
		"winkernel",
	} {
		all = append(all, setting{field: field})
	}
	for _, flag := range [...]string{
		"config-sync-period", "feature-gates", "healthz-port", "ipvs-exclude-cidrs", "ipvs-min-sync-period", "ipvs-scheduler",
		"ipvs-sync-period", "ipvs-tcp-timeout", "ipvs-tcpfin-timeout", "ipvs-udp-timeout", "kube-api-content-type",
		"log-flush-frequency", "log-json-info-buffer-size", "log-text-info-buffer-size", "logging-format", "metrics-port", "oom-score-adj", "show-hidden-metrics-for-version", "vmodule",
	} {
		all = append(all, setting{flag: flag})
	}
	for _, flag := range [...]string{"bind-address-hard-fail", "iptables-localhost-nodeports", "ipvs-strict-arp",
		"log-json-split-stream", "log-text-split-stream", "logtostderr"} {
		all = append(all, setting{flag: flag, isBool: true})
	}
	return all
}
