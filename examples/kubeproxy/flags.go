package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// How the usages of flags begin that stand for fields, and of those that mean
// nothing here.
const (
	ofField = "the `field` "
	ignored = "`ignored`"
)

// config is what the program has been told.
type config struct {
	kubeProxyConfiguration
	task
	// notes are what was passed over, for people.
	notes []string
}

// task says what is to be done at all. Only flags say it.
type task struct {
	configFile, writeTo, master string
	cleanup, initOnly, version  bool
}

// readCommandLine gives what the flags, and the file that they name, say. What is
// wrong with it has been written to out when it returns an error.
func readCommandLine(args []string, out io.Writer) (*config, error) {
	c := &config{kubeProxyConfiguration: defaults()}
	f := flag.NewFlagSet("kubeproxy", flag.ContinueOnError)
	f.SetOutput(out)
	c.task.define(f)
	c.kubeProxyConfiguration.define(f)
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
		_, _ = fmt.Fprintln(out, err) // Where that fails, the status still tells.
	}
	return c, err
}

func (t *task) define(f *flag.FlagSet) {
	f.StringVar(&t.configFile, "config", "", "`path` of a KubeProxyConfiguration; flags that stand for its fields are ignored then")
	f.StringVar(&t.writeTo, "write-config-to", "", "write the configuration that is in effect to this `path`, then exit")
	f.StringVar(&t.master, "master", "", "`URL` of the API server, in the place of the kubeconfig's")
	f.BoolVar(&t.cleanup, "cleanup", false, "remove all rules, then exit")
	f.BoolVar(&t.initOnly, "init-only", false, "do what takes more privileges than CAP_NET_ADMIN, then exit")
	f.BoolVar(&t.version, "version", false, "print the version, then exit")
}

// define defines the flags that stand for fields.
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
		{"masquerade-all", "masqueradeAll of both modes", &c.IPTables.MasqueradeAll},
		{"iptables-masquerade-bit", "iptables.masqueradeBit", &c.IPTables.MasqueradeBit},
		{"iptables-sync-period", "syncPeriod of both modes", &c.IPTables.SyncPeriod},
		{"iptables-min-sync-period", "minSyncPeriod of both modes", &c.IPTables.MinSyncPeriod},
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
		"config-sync-period", "healthz-port", "ipvs-exclude-cidrs", "ipvs-min-sync-period", "ipvs-scheduler",
		"ipvs-sync-period", "ipvs-tcp-timeout", "ipvs-tcpfin-timeout", "ipvs-udp-timeout", "kube-api-content-type",
		"log-flush-frequency", "log-json-info-buffer-size", "log-text-info-buffer-size", "logging-format", "metrics-port",
		"oom-score-adj", "show-hidden-metrics-for-version", "vmodule",
	} {
		f.Func(name, ignored, ignore)
	}
	for _, name := range [...]string{
		"bind-address-hard-fail", "iptables-localhost-nodeports", "ipvs-strict-arp", "log-json-split-stream", "log-text-split-stream", "logtostderr",
	} {
		f.BoolFunc(name, ignored, ignore)
	}
}

// complete takes the file, if one is named, and notes the flags that do not count.
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
				c.notes = append(c.notes, fmt.Sprintf("flag -%s is ignored, since there is a file", x.Name))
			}
		})
	}
	f.Visit(func(x *flag.Flag) {
		if x.Usage == ignored {
			c.notes = append(c.notes, fmt.Sprintf("flag -%s is ignored", x.Name))
		}
	})
	return nil
}
