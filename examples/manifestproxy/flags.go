package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
)

// backend is a choice of the flag -backend.
type backend struct {
	name string
	// needs says, for people, what there must be for it to work.
	needs string
	open  func() (proxy.Backend, error)
	// runs says that it works only as long as the program does.
	runs bool
}

func backends() map[string]backend {
	return map[string]backend{
		"iptables": {
			name:  "iptables",
			needs: "it takes the programs of the package iptables, version 1.8 or later, and CAP_NET_ADMIN; run it as root",
			open:  func() (proxy.Backend, error) { return iptables.New(iptables.Options{}) },
		},
		"nftables": {
			name:  "nftables",
			needs: "it takes Linux 5.13 or later with nf_tables, connection tracking and NAT, and CAP_NET_ADMIN; run it as root",
			open:  func() (proxy.Backend, error) { return nftables.New(nftables.Options{}) },
		},
		"userspace": userspaceBackend(userspace.TPROXY),
	}
}

func userspaceBackend(c userspace.Capture) backend {
	needs := "it takes Linux 5.10 or later with nf_tables, TPROXY and connection tracking, CAP_NET_ADMIN and CAP_NET_RAW; run it as root"
	switch c {
	case userspace.Redirect:
		needs = "it takes Linux 5.10 or later with nf_tables, NAT and connection tracking, and CAP_NET_ADMIN; run it as root"
	case userspace.LocalRoutes:
		needs = "it takes Linux 5.10 or later with BPF, CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW; run it as root"
	case userspace.TPROXY:
	}
	return backend{
		name:  "userspace",
		needs: needs,
		open:  func() (proxy.Backend, error) { return userspace.New(userspace.Options{Capture: c}) },
		runs:  true,
	}
}

// options is what the flags say.
type options struct {
	backend       backend
	capture       *backend // if one was chosen
	manifests     string
	once, cleanup bool
	verbosity     uint
	// healthz and metrics are the addresses to serve at; empty for nowhere.
	healthz, metrics string
	// drain is how long connections may go on when the program is to end.
	drain   time.Duration
	tracker proxy.TrackerOptions
}

// parseFlags reads the command line. What is wrong with it has been written to
// out, with the usage, when it returns an error.
func parseFlags(args []string, out io.Writer) (options, error) {
	o := options{backend: backends()["nftables"]}
	t := &o.tracker
	f := flag.NewFlagSet("manifestproxy", flag.ContinueOnError)
	f.SetOutput(out)
	f.Func("backend", "`name` of what programs the kernel: "+backendNames()+" (default nftables)", o.chooseBackend)
	f.Func("capture", "`way` in which the backend userspace gets at packets: tproxy, redirect, routes (default tproxy)", o.chooseCapture)
	f.Func("drain", "how `long` connections of the backend userspace may go on when the program is to end, for example 30s, while new ones are left to a successor (default not at all)",
		func(s string) (err error) {
			if o.drain, err = time.ParseDuration(s); err == nil && o.drain < 0 {
				err = errors.New("it is negative")
			}
			return err
		})
	f.StringVar(&o.manifests, "manifests", "", "`path` of a file, or of a folder of *.yaml, *.yml and *.json files, with Services and EndpointSlices")
	f.StringVar(&t.NodeName, "node", "", "`name` of this node (default the host's name in lower case)")
	f.Func("cluster-cidr", "`ranges` of pod addresses, by commas", list(&t.LocalTraffic.Sources, parsePrefix))
	f.Func("service-cidr", "`ranges` of ClusterIPs, by commas; what goes to those that no Service has is dropped", list(&t.ServiceCIDRs, parsePrefix))
	f.Func("node-ip", "`addresses` of this node, by commas, the primary ones first, as long as no Node object tells them", list(&t.NodeAddresses, parseAddr))
	f.Func("nodeport-addresses", "`where` node ports answer: primary, all, or ranges of the node's addresses, by commas (default primary)",
		func(s string) (err error) {
			t.NodePortAddresses, err = proxy.ParseNodePortAddresses(strings.Split(s, ",")...)
			return err
		})
	f.BoolVar(&t.MasqueradeAll, "masquerade-all", false, "masquerade all traffic to ClusterIPs")
	f.StringVar(&o.healthz, "healthz-bind-address", "", "`address` and port of /healthz and /livez, for example 0.0.0.0:10256 (default none)")
	f.StringVar(&o.metrics, "metrics-bind-address", "", "`address` and port of /metrics, for example 127.0.0.1:10249 (default none)")
	f.BoolVar(&o.once, "once", false, "program what the manifests say, then exit: with 0 if that was everything, else 1")
	f.BoolVar(&o.cleanup, "cleanup", false, "remove all rules, then exit")
	f.UintVar(&o.verbosity, "v", 0, "log more: 1 what was read, 2 each service port that changed")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if err := o.check(f.Args()); err != nil {
		_, _ = fmt.Fprintln(out, err) // Where that fails, the status still tells.
		f.Usage()
		return o, err
	}
	return o, nil
}

// check looks at the flags as a whole and fills in what they leave out.
func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case o.once && o.cleanup:
		return errors.New("-once and -cleanup exclude each other")
	case o.once && o.backend.runs:
		return errors.New("-once excludes this backend, which carries the traffic for as long as the program runs")
	case o.capture != nil && !o.backend.runs:
		return errors.New("-capture is for -backend userspace")
	case o.drain != 0 && !o.backend.runs:
		return errors.New("-drain is for -backend userspace")
	case o.manifests == "" && !o.cleanup:
		return errors.New("-manifests is required")
	}
	if o.capture != nil {
		o.backend = *o.capture
	}
	if o.cleanup {
		return nil
	}
	return o.nameNode()
}

// nameNode gives the node the name of the host, unless it has one.
func (o *options) nameNode() error {
	if o.tracker.NodeName != "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("-node is required: %w", err)
	}
	o.tracker.NodeName = strings.ToLower(host)
	return nil
}

func (o *options) chooseBackend(name string) error {
	b, ok := backends()[name]
	if !ok {
		return fmt.Errorf("there is no such backend, only %s", backendNames())
	}
	o.backend = b
	return nil
}

func (o *options) chooseCapture(name string) error {
	for _, c := range []userspace.Capture{userspace.TPROXY, userspace.Redirect, userspace.LocalRoutes} {
		if c.String() == name {
			b := userspaceBackend(c)
			o.capture = &b
			return nil
		}
	}
	return errors.New("there is no such way, only tproxy, redirect, routes")
}

func backendNames() string {
	return strings.Join(slices.Sorted(maps.Keys(backends())), ", ")
}

// list reads a list with commas into a slice; the last flag of a name counts.
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

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s has a zone", s)
	}
	return a.Unmap(), err
}
