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
func (o Options) config(countClients func() uint32, around func(commit func() error) error) xtables.Config {
	c := xtables.Config{Options: o.engine(), Names: newNames(o.Identity.Name).Names, Around: around}
	for _, family := range o.Families {
		r := &familyRules{renderer: newRenderer(o, family), wantClients: o.AffinityClients, countClients: countClients}
		c.Families = append(c.Families, xtables.Family{
			Family: family, Render: r.render, Extensions: r.renderer.extensions(),
			Refresh: r.refresh, Check: r.check, CheckLimits: r.checkLimits,
		})
	}
	return c
}

// familyRules are the rules of one IP family, which depend on settings of the kernel.
type familyRules struct {
	renderer *renderer
	// wantClients is how many clients of an endpoint must be remembered, 0 for any number.
	// haveClients is how many the kernel remembers, the last result of countClients.
	wantClients, haveClients uint32
	countClients             func() uint32
}

// render implements [backends.Render].
func (r *familyRules) render(node *proxy.Node, port *proxy.ServicePort, out []xtables.Object) []xtables.Object {
	return r.renderer.render(node, port, out)
}

// refresh reads the settings of the kernel. Those on which all rules depend are read only
// before a full apply. Otherwise, its error means that a full apply is needed.
func (r *familyRules) refresh(full bool) error {
	was := r.haveClients
	if r.wantClients > 0 {
		r.haveClients = r.countClients()
	}
	switch {
	case full:
		return r.readSettings()
	case r.haveClients != was:
		return errors.New("ip_list_tot of module xt_recent has changed; applying everything again")
	}
	return nil
}

// readSettings reads the kernel's settings on which all rules depend.
func (r *familyRules) readSettings() error {
	liberal, err := isOn(os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"))
	if err != nil {
		return fmt.Errorf("iptables: the settings of the kernel: %w", err)
	}
	renderer := *r.renderer
	renderer.liberal = liberal
	r.renderer = &renderer
	return nil
}

// check refuses session affinity for more clients than the kernel remembers.
func (r *familyRules) check(port *proxy.ServicePort) error {
	if !port.Affinity.Enabled() || r.wantClients <= r.haveClients {
		return nil
	}
	return fmt.Errorf("session affinity: the kernel remembers %d clients of an endpoint, not %d: "+
		"load the module xt_recent with ip_list_tot=%d", r.haveClients, r.wantClients, r.wantClients)
}

// checkLimits reports that a parameter of a kernel module sets how many clients of each
// endpoint the kernel remembers. That matters neither for a single endpoint, which serves all
// clients, nor if the options give the required number.
func (r *familyRules) checkLimits(port *proxy.ServicePort) []*proxy.Problem {
	if r.wantClients > 0 || !port.Affinity.Enabled() || max(len(port.Cluster), len(port.Local)) < 2 {
		return nil
	}
	count := "an unknown number of"
	if n := r.countClients(); n > 0 {
		count = strconv.FormatUint(uint64(n), 10)
	}
	return []*proxy.Problem{{
		Kind: "Service", NamespacedName: port.Name.NamespacedName, Field: "spec.sessionAffinity",
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
