package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
)

// options has the values of the flags.
type options struct {
	// manifests is the path of the files; with demo, the program brings its own.
	manifests           string
	demo, once, cleanup bool
	backend             string
	windows             userspace.AddressOptions
	// healthz and metrics are the addresses to serve at; empty for nowhere.
	healthz, metrics string
	tracker          proxy.TrackerOptions
}

// open makes the backend.
func (o *options) open() (proxy.Backend, error) {
	switch o.backend {
	case "iptables":
		return iptables.New(iptables.Options{})
	case "ipvs":
		return ipvs.New(ipvs.Options{})
	case "nftables":
		return nftables.New(nftables.Options{})
	case "userspace":
		return userspace.New(userspace.Options{Addresses: o.windows})
	}
	return nil, fmt.Errorf("-backend %q: want iptables, ipvs, nftables or userspace", o.backend)
}

// demoNodeName is the name of this node in the manifest of the demo.
const demoNodeName = "node-1"

// parseFlags reads the command line. It has written its error and the usage to out when it
// returns one.
func parseFlags(args []string, out io.Writer) (options, error) {
	var o options
	t := &o.tracker
	f := flag.NewFlagSet("manifestproxy", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.manifests, "manifests", "", "`path` of a file, or of a folder of *.yaml, *.yml and *.json files, with Services and EndpointSlices")
	f.BoolVar(&o.demo, "demo", false, "without files, show a Service at work in a network namespace of the program's own, on Linux")
	f.StringVar(&o.backend, "backend", "nftables", "`name` of the backend: iptables, ipvs, nftables, userspace")
	f.StringVar(&o.windows.Interface, "interface", "", "`name` of the interface to which the backend userspace adds addresses on Windows "+
		"(default the value of the variable INTERFACE_TO_ADD_SERVICE_IP, or else vEthernet (HNS Internal NIC))")
	f.BoolVar(&o.windows.Netsh, "netsh", false, "add these addresses by the program netsh, not by the IP helper API")
	f.StringVar(&t.NodeName, "node", "", "`name` of this node (default the host's name in lower case)")
	f.Func("cluster-cidr", "`ranges` of pod addresses, separated by commas", list(&t.LocalTraffic.Sources, parsePrefix))
	f.Func("service-cidr", "`ranges` of ClusterIPs, separated by commas; traffic to unused ones is dropped", list(&t.ServiceCIDRs, parsePrefix))
	f.Func("node-ip", "`addresses` of this node, separated by commas, the primary ones first, unless there is a Node object", list(&t.NodeAddresses, netip.ParseAddr))
	f.Func("nodeport-addresses", "`where` node ports answer: primary, all, and ranges of the node's addresses, separated by commas (default primary)",
		func(s string) (err error) {
			t.NodePortAddresses, err = proxy.ParseNodePortAddresses(strings.Split(s, ",")...)
			return err
		})
	f.StringVar(&o.healthz, "healthz-bind-address", "", "`address` and port of /healthz and /livez, for example 0.0.0.0:10256 (default none)")
	f.StringVar(&o.metrics, "metrics-bind-address", "", "`address` and port of /metrics and, for clients on the node, /debug/services, for example 127.0.0.1:10249 (default none)")
	f.BoolVar(&o.once, "once", false, "program the manifests, then exit: with 0 if everything was programmed, else 1")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove all rules, then exit")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if err := o.check(f.Args()); err != nil {
		_, _ = fmt.Fprintln(out, err) // If it fails, the exit status still shows the error.
		f.Usage()
		return o, err
	}
	return o, nil
}

// check checks the flags together and sets the defaults of the tracker.
func (o *options) check(rest []string) error {
	chosen := 0
	for _, is := range []bool{o.manifests != "", o.demo, o.cleanup} {
		if is {
			chosen++
		}
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case chosen != 1 || o.once && o.manifests == "":
		return errors.New("one of -manifests, -demo and -cleanup is required, and -once is for -manifests")
	case o.once && o.backend == "userspace":
		return errors.New("-once excludes the backend userspace, which serves only while the program runs")
	case len(o.tracker.NodePortAddresses.Loopback) > 0:
		return errors.New("-nodeport-addresses: only examples/kubeproxy serves node ports at loopback addresses")
	}
	if o.backend == "ipvs" {
		o.tracker.Annotations = []string{ipvs.SchedulerAnnotation}
	}
	if o.tracker.NodeName != "" || o.cleanup {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("-node is required: %w", err)
	}
	o.tracker.NodeName = strings.ToLower(host)
	return nil
}

// list returns the parser of a flag with values separated by commas; the last flag of a name
// counts.
func list[T any](into *[]T, parse func(string) (T, error)) func(string) error {
	return func(text string) error {
		*into = nil
		for item := range strings.SplitSeq(text, ",") {
			v, err := parse(item)
			if err != nil {
				return err
			}
			*into = append(*into, v)
		}
		return nil
	}
}

func parsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err
}
