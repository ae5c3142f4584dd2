package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/userspace"
)

// The beginning of the usage of flags for configuration fields, and the usage of flags that
// this program ignores.
const (
	ofField = "the `field` "
	ignored = "`ignored`"
)

// config has all settings of the program.
type config struct {
	kubeProxyConfiguration
	task
	// notes name the ignored flags and fields, for the log.
	notes []string
	// system is the operating system, as GOOS names it; openHNS opens another HNS than
	// that of the machine.
	system  string
	openHNS func() (hnsClient, error)
}

// task has the settings that only flags can set.
type task struct {
	configFile, writeTo, master string
	cleanup, initOnly, version  bool
	// cleanupIPVS says that -cleanup removes what mode ipvs has programmed too.
	cleanupIPVS bool
	// traffic adds metrics of each Service, if the mode counts.
	traffic bool
	// drainTimeout and drainServices are those of the backend of mode ipvs.
	drainTimeout  time.Duration
	drainServices bool
	// addAt says where and how mode userspace adds addresses on Windows.
	addAt userspace.AddressOptions
}

// readCommandLine reads the flags and the file that they name. It has written its error to
// out when it returns one.
func readCommandLine(args []string, out io.Writer) (*config, error) {
	return readCommandLineOn(runtime.GOOS, args, out)
}

// readCommandLineOn is readCommandLine on an operating system.
func readCommandLineOn(system string, args []string, out io.Writer) (*config, error) {
	c := &config{kubeProxyConfiguration: defaults(), system: system}
	f := flag.NewFlagSet("kubeproxy", flag.ContinueOnError)
	f.SetOutput(out)
	c.task.define(f)
	c.kubeProxyConfiguration.define(f)
	c.defineForWindows(f)
	f.Func("feature-gates", ofField+"featureGates of KubeProxyConfiguration", func(text string) error {
		notes, err := c.FeatureGates.set(text)
		c.notes = append(c.notes, notes...)
		return err
	})
	defineIgnored(f)
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	err := c.complete(f)
	if err != nil {
		_, _ = fmt.Fprintln(out, err) // If it fails, the exit status still shows the error.
	}
	return c, err
}

func (t *task) define(f *flag.FlagSet) {
	f.StringVar(&t.configFile, "config", "", "`path` of a KubeProxyConfiguration; flags for its fields are then ignored")
	f.StringVar(&t.writeTo, "write-config-to", "", "write the configuration in effect to this `path`, then exit")
	f.StringVar(&t.master, "master", "", "`URL` of the API server; overrides the kubeconfig")
	f.BoolVar(&t.cleanup, "cleanup", false, "remove all rules, then exit")
	f.BoolVar(&t.cleanupIPVS, "cleanup-ipvs", true, "with -cleanup, also remove what mode ipvs has programmed")
	f.BoolVar(&t.traffic, "service-metrics", false, "in mode ipvs, count connections, packets and bytes of each Service in /metrics")
	f.DurationVar(&t.drainTimeout, "ipvs-drain-timeout", ipvs.DefaultDrainTimeout, "how long open TCP connections of mode ipvs go on if the Service "+
		"has their endpoint no more, or if another mode serves now; a negative duration ends them at once")
	f.BoolVar(&t.drainServices, "ipvs-drain-services", false, "in mode ipvs, keep open TCP connections for that time also if the Service is deleted")
	f.BoolVar(&t.initOnly, "init-only", false, "set the kernel's parameters that need more privileges than CAP_NET_ADMIN, then exit")
	f.BoolVar(&t.version, "version", false, "print the version, then exit")
}

// define defines the flags for fields.
func (c *kubeProxyConfiguration) define(f *flag.FlagSet) {
	for _, x := range []struct {
		flag, field string
		into        any
	}{
		{"v", "logging.verbosity", &c.Logging.Verbosity},
		{"hostname-override", "hostnameOverride", &c.HostnameOverride},
		{"kubeconfig", "clientConnection.kubeconfig", &c.ClientConnection.Kubeconfig},
		{"kube-api-qps", "clientConnection.qps", &c.ClientConnection.QPS},
		{"kube-api-burst", "clientConnection.burst", &c.ClientConnection.Burst},
		{"proxy-mode", "mode", &c.Mode},
		{"bind-address", "bindAddress", &c.BindAddress},
		{"healthz-bind-address", "healthzBindAddress", &c.HealthzBindAddress},
		{"metrics-bind-address", "metricsBindAddress", &c.MetricsBindAddress},
		{"profiling", "enableProfiling", &c.EnableProfiling},
		{"detect-local-mode", "detectLocalMode", &c.DetectLocalMode},
		{"cluster-cidr", "clusterCIDR", &c.ClusterCIDR},
		{"pod-bridge-interface", "detectLocal.bridgeInterface", &c.DetectLocal.BridgeInterface},
		{"pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", &c.DetectLocal.InterfaceNamePrefix},
		{"nodeport-addresses", "nodePortAddresses", &c.NodePortAddresses},
		{"masquerade-all", "masqueradeAll of all modes", &c.IPTables.MasqueradeAll},
		{"iptables-masquerade-bit", "iptables.masqueradeBit", &c.IPTables.MasqueradeBit},
		{"iptables-sync-period", "syncPeriod of iptables and nftables", &c.IPTables.SyncPeriod},
		{"iptables-min-sync-period", "minSyncPeriod of iptables and nftables", &c.IPTables.MinSyncPeriod},
		{"ipvs-scheduler", "ipvs.scheduler", &c.IPVS.Scheduler},
		{"ipvs-sync-period", "ipvs.syncPeriod", &c.IPVS.SyncPeriod},
		{"ipvs-min-sync-period", "ipvs.minSyncPeriod", &c.IPVS.MinSyncPeriod},
		{"ipvs-exclude-cidrs", "ipvs.excludeCIDRs", &c.IPVS.ExcludeCIDRs},
		{"ipvs-strict-arp", "ipvs.strictARP", &c.IPVS.StrictARP},
		{"ipvs-tcp-timeout", "ipvs.tcpTimeout", &c.IPVS.TCPTimeout},
		{"ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", &c.IPVS.TCPFinTimeout},
		{"ipvs-udp-timeout", "ipvs.udpTimeout", &c.IPVS.UDPTimeout},
		{"conntrack-max-per-core", "conntrack.maxPerCore", &c.Conntrack.MaxPerCore},
		{"conntrack-min", "conntrack.min", &c.Conntrack.Min},
		{"conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", &c.Conntrack.TCPEstablishedTimeout},
		{"conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", &c.Conntrack.TCPCloseWaitTimeout},
		{"conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", &c.Conntrack.TCPBeLiberal},
		{"conntrack-udp-timeout", "conntrack.udpTimeout", &c.Conntrack.UDPTimeout},
		{"conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", &c.Conntrack.UDPStreamTimeout},
	} {
		usage := ofField + x.field + " of KubeProxyConfiguration"
		switch into := x.into.(type) {
		case *string:
			f.StringVar(into, x.flag, *into, usage)
		case *bool:
			f.BoolVar(into, x.flag, *into, usage)
		case *int:
			f.IntVar(into, x.flag, *into, usage)
		case *float64:
			f.Float64Var(into, x.flag, *into, usage)
		case *duration:
			f.DurationVar(&into.Duration, x.flag, into.Duration, usage)
		case *[]string:
			f.Func(x.flag, usage, func(text string) error {
				*into = strings.FieldsFunc(text, func(c rune) bool { return c == ',' })
				return nil
			})
		}
	}
}

func defineIgnored(f *flag.FlagSet) {
	ignore := func(string) error { return nil }
	for _, name := range [...]string{
		"config-sync-period", "healthz-port", "kube-api-content-type", "log-flush-frequency", "log-json-info-buffer-size",
		"log-text-info-buffer-size", "logging-format", "metrics-port", "oom-score-adj", "show-hidden-metrics-for-version", "vmodule",
	} {
		f.Func(name, ignored, ignore)
	}
	for _, name := range [...]string{
		"bind-address-hard-fail", "iptables-localhost-nodeports", "log-json-split-stream", "log-text-split-stream", "logtostderr",
	} {
		f.BoolFunc(name, ignored, ignore)
	}
}

// complete reads the file, if one is named, and notes the flags that are ignored.
func (c *config) complete(f *flag.FlagSet) (err error) {
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case c.cleanup && c.initOnly:
		return errors.New("-cleanup and -init-only exclude each other")
	case c.configFile == "":
		bit := c.NFTables.MasqueradeBit // which has no flag
		c.NFTables = c.IPTables
		c.NFTables.MasqueradeBit = bit
	default:
		flags := c.kubeProxyConfiguration
		if c.kubeProxyConfiguration, c.notes, err = readFile(c.configFile); err != nil {
			return err
		}
		f.Visit(func(x *flag.Flag) {
			switch {
			case x.Name == "v":
				c.Logging = flags.Logging
			case x.Name == "hostname-override":
				c.HostnameOverride = flags.HostnameOverride
			case strings.HasPrefix(x.Usage, ofField):
				c.notes = append(c.notes, fmt.Sprintf("flag -%s is ignored because of -config", x.Name))
			}
		})
	}
	f.Visit(func(x *flag.Flag) {
		if x.Usage == ignored {
			c.notes = append(c.notes, fmt.Sprintf("flag -%s is ignored", x.Name))
		}
	})
	return c.checkSystem(f)
}
