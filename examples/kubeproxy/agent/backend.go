package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/examples/kubeproxy/ipvstakeover"
	"github.com/vipkit/vipkit/proxy"
)

// The modes, by kube-proxy's names.
const (
	nftablesMode = "nftables"
	iptablesMode = "iptables"
	ipvsMode     = "ipvs"
)

// The names of kube-proxy's own rules: tables kube-proxy of nf_tables, and chains
// KUBE-... of iptables. In iptables mode this program uses the same chains, and so
// adopts them.
const (
	kubeProxyTables = "kube-proxy"
	kubeProxyChains = "kube"
)

// candidate is a mode to try, and the reason.
type candidate struct{ mode, reason string }

// candidates returns the modes to try, the best one first.
func (c *config) candidates() []candidate {
	switch {
	case c.Mode == ipvsMode:
		return []candidate{
			{ipvsMode, "configured"},
			{nftablesMode, ipvsMode + " is unsupported on this node"},
			{iptablesMode, ipvsMode + " and " + nftablesMode + " are unsupported on this node"},
		}
	case c.Mode != "":
		return []candidate{{string(c.Mode), "configured"}}
	case c.onWindows():
		return []candidate{{kernelspaceMode, "none configured"}}
	}
	return []candidate{
		{nftablesMode, "none configured; a connection costs the same at any number of Services"},
		{iptablesMode, "none configured; " + nftablesMode + " is unsupported on this node"},
	}
}

// mark returns the bit of packet marks, or of connection marks, for a mode.
func (c *config) mark(mode string) uint32 { return 1 << *c.section(mode).MasqueradeBit }

// open returns the backend of a mode.
func (c *config) open(mode string) (proxy.Backend, error) {
	switch mode {
	case nftablesMode:
		return nftables.New(nftables.Options{Identity: c.identity("", c.mark(mode))})
	case userspaceMode:
		return userspace.New(c.userspaceOptions())
	case ipvsMode:
		return ipvs.New(c.ipvsOptions())
	}
	return iptables.New(iptables.Options{Identity: c.identity(kubeProxyChains, c.mark(mode))})
}

// identity returns the identity of a backend, with a name and a mark if the options have none.
func (c *config) identity(name string, mark uint32) backends.Identity {
	i := c.Identity
	i.Name, i.Mark = cmp.Or(i.Name, name), cmp.Or(i.Mark, mark)
	return i
}

// resyncInterval is how often the Runner checks the dataplane of a mode for drift. In mode
// nftables that is cheap: the kernel reports commits of other programs to the tables.
func (c *config) resyncInterval(mode string) time.Duration {
	usual := defaultSync
	if mode == nftablesMode {
		usual = time.Second
	}
	return cmp.Or(c.section(mode).SyncPeriod.Duration, usual)
}

// cleanUpAll is what -cleanup does. It returns what it has done.
func (c *config) cleanUpAll(ctx context.Context, log logr.Logger) (done string, err error) {
	if c.cleanupIPVS {
		return "all rules are removed", c.cleanUp(ctx, "", log)
	}
	return "all rules are removed, except the rules of mode ipvs", c.cleanUp(ctx, ipvsMode, log)
}

// hasIPVS reports whether the kernel has IPVS now. Asking a kernel that has not further would load the
// module.
func hasIPVS() bool {
	_, err := os.Stat("/proc/net/ip_vs")
	return err == nil
}

// mayHaveIPVS reports whether this program's mode ipvs may have left something. The module ip_vs can be
// unloaded while the device and the sets stay; to ask a kernel without ip_set would load that module.
func (c *config) mayHaveIPVS() bool {
	_, noSets := os.Stat("/sys/module/ip_set")
	_, noDevice := net.InterfaceByName(cmp.Or(c.Identity.Name, backends.DefaultName) + "-ipvs0")
	return noSets == nil || hasIPVS() || noDevice == nil
}

// cleanUpIPVS removes what this program's mode ipvs has left.
func (c *config) cleanUpIPVS(ctx context.Context) error {
	return ipvs.Cleanup(ctx, ipvs.Options{Identity: c.identity("", c.mark(ipvsMode))})
}

// removal is what cleanUp does with each kind of rules.
type removal struct {
	ctx  context.Context //nolint:containedctx // it lives as long as a call
	log  logr.Logger
	errs []error
}

// anyFlavour are the chains of the flavour that the programs of iptables have by default. A node
// may have chains and lack the programs, as an image without them does.
const anyFlavour = "the chains KUBE- of iptables"

// removed handles the result of removing something.
func (r *removal) removed(what string, err error) {
	switch {
	case errors.Is(err, exec.ErrNotFound) && what == anyFlavour:
		r.log.Info("chains KUBE- of iptables, if there are any, are not removed: a program is missing", "reason", err.Error())
	case errors.Is(err, proxy.ErrUnsupported) && !errors.Is(err, backends.ErrUnavailable):
		r.log.V(1).Info("nothing to remove", "what", what, "reason", err.Error())
	case err != nil:
		r.errs = append(r.errs, fmt.Errorf("remove %s: %w", what, err))
	}
}

// remove removes what a backend has programmed; err is the error of opening the backend.
func (r *removal) remove(what string, b proxy.Backend, err error) {
	if err == nil {
		err = errors.Join(b.Cleanup(r.ctx), b.Close())
	}
	r.removed(what, err)
}

// cleanUp removes the rules of this program and, if it has their place, of kube-proxy. It keeps the rules of the mode
// except. A node that does not support a kind of rules has none of them.
func (c *config) cleanUp(ctx context.Context, except string, log logr.Logger) error {
	if c.onWindows() {
		return c.cleanUpWindows(ctx, except, log)
	}
	r := removal{ctx: ctx, log: log}
	if except != nftablesMode {
		b, err := nftables.New(nftables.Options{Identity: backends.Identity{Name: c.Identity.Name}})
		r.remove("the tables "+cmp.Or(c.Identity.Name, backends.DefaultName), b, err)
	}
	if except != ipvsMode && c.mayHaveIPVS() {
		r.removed("the virtual servers, the device and the sets of mode ipvs", c.cleanUpIPVS(ctx))
	}
	if except != iptablesMode {
		c.cleanUpChains(&r)
	}
	if c.Identity.Name != "" {
		return errors.Join(r.errs...)
	}
	b, err := nftables.New(nftables.Options{Identity: backends.Identity{Name: kubeProxyTables}})
	r.remove("the tables "+kubeProxyTables, b, err)
	// No rule needs its sets any more: mode iptables has adopted and removed the rules of kube-proxy, too.
	if c.cleanupIPVS || !c.cleanup {
		r.removed("the virtual servers, the device and the sets of kube-proxy's mode ipvs", ipvstakeover.Cleanup(ctx, c.excluded))
	}
	return errors.Join(r.errs...)
}

// cleanUpChains removes the chains of mode iptables.
func (c *config) cleanUpChains(r *removal) {
	flavours := []iptables.Flavour{iptables.Default}
	if c.Identity.Name == "" { // kube-proxy may have used another flavour than this program's default.
		flavours = append(flavours, iptables.Legacy, iptables.NFT)
	}
	for _, flavour := range flavours {
		b, err := iptables.New(iptables.Options{Flavour: flavour, Identity: backends.Identity{Name: cmp.Or(c.Identity.Name, kubeProxyChains)}})
		r.remove(strings.TrimSuffix(anyFlavour+"-"+string(flavour), "-"), b, err)
	}
}
