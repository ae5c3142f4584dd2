package iptables

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// config returns what the engine needs.
func (o Options) config(around func(commit func() error) error) xtables.Config {
	c := xtables.Config{
		Options: xtables.Options{Flavour: xtables.Flavour(o.Flavour), LockWait: o.LockWait}, Names: newNames(o.Identity.Name).Names, Around: around,
	}
	for _, family := range o.Families {
		r := newRenderer(o, family)
		c.Families = append(c.Families, xtables.Family{
			Family: family, Render: r.render, Extensions: r.extensions(), Facts: readSettings, CheckLimits: checkLimits,
		})
	}
	return c
}

// readSettings reads the settings of the kernel on which all rules depend.
func readSettings() (any, error) {
	liberal, err := isOn(os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"))
	if err != nil {
		return nil, fmt.Errorf("iptables: the settings of the kernel: %w", err)
	}
	return settings{liberal}, nil
}

// checkLimits reports that a parameter of a kernel module sets how many clients of each
// endpoint the kernel remembers. That does not matter for a single endpoint, which serves all
// clients.
func checkLimits(port *proxy.ServicePort) []*proxy.Problem {
	if !port.Affinity.Enabled() || max(len(port.Cluster), len(port.Local)) < 2 {
		return nil
	}
	count := "an unknown number of"
	if n := rememberedClients(); n > 0 {
		count = strconv.FormatUint(uint64(n), 10)
	}
	return []*proxy.Problem{{
		Kind: "Service", NamespacedName: port.Name.NamespacedName, Field: "spec.sessionAffinity", Reason: proxy.ServedWithLimits,
		Err: fmt.Errorf("the kernel remembers %s clients of an endpoint; if there are more, it forgets those that were idle for longest, "+
			"and their connections may go to another endpoint: load the module xt_recent with a larger ip_list_tot", count),
	}}
}

// isOn parses a setting of the kernel. A file that does not exist means that the setting is
// off: connection tracking is not in use yet.
func isOn(text []byte, err error) (bool, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && strings.TrimSpace(string(text)) != "0", err
}

// rememberedClients returns how many clients of an endpoint the kernel remembers; 0 if the
// module is not loaded.
func rememberedClients() uint32 {
	text, err := os.ReadFile("/sys/module/xt_recent/parameters/ip_list_tot")
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}
