package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
)

// choices are the values of the flags -capture, -scheduler, -ip-families, -interface and -netsh.
type choices struct {
	capture, scheduler string
	families           []v1.IPFamily
	addresses          userspace.AddressOptions
}

// backend is the choice of the flag -backend.
type backend struct {
	name string
	// needs is a log message that names the requirements of the backend.
	needs string
	open  func() (proxy.Backend, error)
	// runs says that Services work only while the program runs.
	runs bool
}

// newBackend returns the backend of these flags.
func newBackend(name string, c choices) backend {
	b := kernelBackend(name, c)
	if b.open == nil {
		b = socketBackend(c)
	}
	b.name = name
	return b
}

// kernelBackend returns a backend by which the kernel forwards.
func kernelBackend(name string, c choices) backend {
	switch name {
	case "ipvs":
		return backend{
			needs: "it needs the kernel modules ip_vs, dummy, ip_set and xt_set, the programs of the package iptables, version 1.8 or later, and CAP_NET_ADMIN; run it as root",
			open: func() (proxy.Backend, error) {
				return ipvs.New(ipvs.Options{Scheduler: c.scheduler, Families: c.families})
			},
		}
	case "iptables":
		return backend{
			needs: "it needs the programs of the package iptables, version 1.8 or later, and CAP_NET_ADMIN; run it as root",
			open:  func() (proxy.Backend, error) { return iptables.New(iptables.Options{Families: c.families}) },
		}
	case "nftables":
		return backend{
			needs: "it needs Linux 5.13 or later with nf_tables, connection tracking and NAT, and CAP_NET_ADMIN; run it as root",
			open:  func() (proxy.Backend, error) { return nftables.New(nftables.Options{Families: c.families}) },
		}
	}
	return backend{}
}

// socketBackend returns the backend that forwards itself, with a capture.
func socketBackend(chosen choices) backend {
	c, needs := userspace.DefaultCapture, "nf_tables, TPROXY, nft_dup_ipv4, nft_dup_ipv6, connection tracking with zones, CAP_NET_ADMIN and CAP_NET_RAW (or choose -capture redirect)"
	switch chosen.capture {
	case "tproxy":
		c = userspace.TPROXY
	case "redirect":
		c, needs = userspace.Redirect, "nf_tables, NAT and connection tracking, and CAP_NET_ADMIN"
	case "addresses":
		c = userspace.Addresses
	}
	needs = "it needs Linux 5.10 or later with " + needs + "; run it as root"
	if runtime.GOOS == "windows" || c == userspace.Addresses {
		needs = "it needs Windows; run it as an administrator"
	}
	return backend{
		needs: needs,
		open: func() (proxy.Backend, error) {
			return userspace.New(userspace.Options{Capture: c, Families: chosen.families, Addresses: chosen.addresses})
		},
		runs: true,
	}
}

// files says where the program reads Services, and where it keeps what it allocates for them.
type files struct {
	manifests string
	// demo says that the program brings its own manifest.
	demo bool
	// allocations is the file of the ClusterIPs that Services without one get.
	allocations string
}

// demoNodeName is the name of this node in the manifest of the demo, unless -node is given.
const demoNodeName = "node-1"

// register adds the flags of the files.
func (o *files) register(f *flag.FlagSet) {
	f.StringVar(&o.manifests, "manifests", "", "`path` of a file, or of a folder of *.yaml, *.yml and *.json files, with Services and EndpointSlices")
	f.StringVar(&o.allocations, "allocations", defaultAllocations(), "`path` of the file that keeps which Services got a ClusterIP from -service-cidr")
	f.BoolVar(&o.demo, "demo", false, "without files, show a Service at work in a network namespace of the program's own, on Linux")
}

// check checks the flags together.
func (o *files) check(cleanup bool) error {
	switch {
	case o.demo && (o.manifests != "" || cleanup):
		return errors.New("-demo excludes -manifests and -cleanup")
	case o.manifests == "" && !cleanup && !o.demo:
		return errors.New("-manifests or -demo is required")
	}
	return nil
}

// register adds the flags.
func (c *choices) register(f *flag.FlagSet) {
	f.Func("scheduler", "`name` of the IPVS scheduler of Services without the annotation "+ipvs.SchedulerAnnotation+", and its flags, for the backend ipvs: "+
		strings.Join(ipvs.Schedulers(), ", ")+"; sh,sh-port and mh,mh-port (default rr)", func(s string) error {
		c.scheduler = s
		name, _, _ := strings.Cut(s, ",") // the backend checks the flags
		return choice(&name, "scheduler", ipvs.Schedulers()...)(name)
	})
	f.Func("capture", "`how` packets get to the backend userspace: on Linux tproxy or redirect (default tproxy), on Windows addresses", func(s string) error {
		if s == "routes" {
			return new(userspace.Capture).UnmarshalText([]byte(s)) // it says what replaces it
		}
		return choice(&c.capture, "capture", "tproxy", "redirect", "addresses")(s)
	})
	f.StringVar(&c.addresses.Interface, "interface", "", "`name` of the interface to which the backend userspace adds addresses on Windows "+
		"(default the value of the variable INTERFACE_TO_ADD_SERVICE_IP, or else vEthernet (HNS Internal NIC))")
	f.BoolVar(&c.addresses.Netsh, "netsh", false, "add these addresses by the program netsh, not by the IP helper API")
	f.Func("ip-families", "IP `families` to serve, separated by commas: ipv4, ipv6 (default both); what was programmed for the other one stays until -cleanup without this flag",
		list(&c.families, func(s string) (v1.IPFamily, error) {
			switch s {
			case "ipv4":
				return v1.IPv4Protocol, nil
			case "ipv6":
				return v1.IPv6Protocol, nil
			}
			return "", fmt.Errorf("unknown family %q: want ipv4, ipv6", s)
		}))
}

// defaultAllocations returns where programs keep their state.
func defaultAllocations() string {
	if runtime.GOOS == "windows" {
		return filepath.Join(os.Getenv("ProgramData"), "manifestproxy", "allocations")
	}
	return "/var/lib/manifestproxy/allocations"
}

// options has the values of the flags.
type options struct {
	backend       backend
	choices       choices // zero values for flags that are not set
	files         files
	once, cleanup bool
	traffic       bool // metrics of each Service
	verbosity     uint
	// healthz and metrics are the addresses to serve at; empty for nowhere.
	healthz, metrics string
	// drain is how long the program waits for its connections before it ends.
	drain   time.Duration
	tracker proxy.TrackerOptions
}

// parseFlags reads the command line. It has written its error and the usage to out when it
// returns one.
func parseFlags(args []string, out io.Writer) (options, error) {
	var o options
	name, t := "nftables", &o.tracker
	f := flag.NewFlagSet("manifestproxy", flag.ContinueOnError)
	f.SetOutput(out)
	f.Func("backend", "`name` of the backend: iptables, ipvs, nftables, userspace (default nftables)",
		choice(&name, "backend", "iptables", "ipvs", "nftables", "userspace"))
	o.choices.register(f)
	f.Func("drain", "how `long` to wait for connections of the backend userspace before the program ends, for example 30s, while a successor accepts new ones (default 0s)",
		func(s string) (err error) {
			if o.drain, err = time.ParseDuration(s); err == nil && o.drain < 0 {
				err = errors.New("it is negative")
			}
			return err
		})
	o.files.register(f)
	f.StringVar(&t.NodeName, "node", "", "`name` of this node (default the host's name in lower case)")
	f.Func("cluster-cidr", "`ranges` of pod addresses, separated by commas", list(&t.LocalTraffic.Sources, parsePrefix))
	f.Func("service-cidr", "`ranges` of ClusterIPs, separated by commas; traffic to unused ones is dropped, and Services without one get one", list(&t.ServiceCIDRs, parsePrefix))
	f.Func("node-ip", "`addresses` of this node, separated by commas, the primary ones first, unless there is a Node object", list(&t.NodeAddresses, parseAddr))
	f.Func("nodeport-addresses", "`where` node ports answer: primary, all, localhost, and ranges of the node's addresses, separated by commas (default primary)",
		func(s string) (err error) {
			t.NodePortAddresses, err = proxy.ParseNodePortAddresses(strings.Split(s, ",")...)
			return err
		})
	f.TextVar(&t.LocalFallback, "local-fallback", t.LocalFallback, "`endpoints` of a Local traffic policy if no local one is ready: terminating, none or cluster")
	f.BoolVar(&t.MasqueradeAll, "masquerade-all", false, "masquerade all traffic to ClusterIPs")
	f.StringVar(&o.healthz, "healthz-bind-address", "", "`address` and port of /healthz and /livez, for example 0.0.0.0:10256 (default none)")
	f.StringVar(&o.metrics, "metrics-bind-address", "", "`address` and port of /metrics and, for clients on the node, /debug/services, for example 127.0.0.1:10249 (default none)")
	f.BoolVar(&o.traffic, "service-metrics", false, "with /metrics, count connections, packets and bytes of each Service, for the backend ipvs")
	f.BoolVar(&o.once, "once", false, "program the manifests, then exit: with 0 if everything was programmed, else 1")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove all rules, then exit")
	f.UintVar(&o.verbosity, "v", 0, "log more: 1 what was read, 2 each service port that changed")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.backend = newBackend(name, o.choices)
	if name == "ipvs" {
		t.Annotations = []string{ipvs.SchedulerAnnotation}
	}
	if err := o.check(f.Args()); err != nil {
		_, _ = fmt.Fprintln(out, err) // If it fails, the exit status still shows the error.
		f.Usage()
		return o, err
	}
	return o, nil
}

// check checks the flags together and sets the default of -node.
func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case o.once && o.cleanup:
		return errors.New("-once and -cleanup exclude each other")
	case o.once && o.backend.runs:
		return errors.New("-once excludes this backend, which serves only while the program runs")
	}
	if err := errors.Join(o.files.check(o.cleanup), o.checkDemo(), o.checkBackend()); err != nil {
		return err
	}
	if o.files.demo && o.tracker.NodeName == "" {
		o.tracker.NodeName = demoNodeName
	}
	if o.cleanup || o.tracker.NodeName != "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("-node is required: %w", err)
	}
	o.tracker.NodeName = strings.ToLower(host)
	return nil
}

// checkDemo refuses flags with what the demo chooses itself.
func (o *options) checkDemo() error {
	isChosen := o.tracker.NodeAddresses != nil || o.tracker.LocalTraffic.Sources != nil || o.files.allocations != defaultAllocations()
	if o.files.demo && isChosen {
		return errors.New("-demo excludes -node-ip, -cluster-cidr and -allocations, which it sets itself")
	}
	return nil
}

// checkBackend checks the flags that are for single backends.
func (o *options) checkBackend() error {
	switch {
	case o.choices.capture != "" && !o.backend.runs:
		return errors.New("-capture is for -backend userspace")
	case o.choices.addresses != (userspace.AddressOptions{}) && !o.backend.runs:
		return errors.New("-interface and -netsh are for -backend userspace")
	case o.choices.scheduler != "" && o.backend.name != "ipvs":
		return errors.New("-scheduler is for -backend ipvs")
	case o.traffic && (o.backend.name != "ipvs" || o.metrics == ""):
		return errors.New("-service-metrics is for -backend ipvs with -metrics-bind-address")
	case o.drain != 0 && !o.backend.runs:
		return errors.New("-drain is for -backend userspace")
	}
	return nil
}

// choice returns the parser of a flag that has one of some words as its value.
func choice(into *string, what string, words ...string) func(string) error {
	return func(text string) error {
		if !slices.Contains(words, text) {
			return fmt.Errorf("unknown %s: want %s", what, strings.Join(words, ", "))
		}
		*into = text
		return nil
	}
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
	if err != nil {
		return p, fmt.Errorf("%q is not a CIDR such as 10.96.0.0/16 or fd00::/108", s)
	}
	return p.Masked(), nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return a, fmt.Errorf("%q is not an IP address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%s has a zone", s)
	}
	return a.Unmap(), nil
}
