package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/proxy"
)

// The modes, by kube-proxy's names.
const (
	nftablesMode = "nftables"
	iptablesMode = "iptables"
)

// kubeProxy is how kube-proxy's own rules are called: tables kube-proxy of
// nf_tables, and chains KUBE-... of iptables. In iptables mode this program has the
// same names, and so takes over what it finds.
const (
	kubeProxyTables = "kube-proxy"
	kubeProxyChains = "kube"
)

// candidate is a mode to try, and why.
type candidate struct{ mode, reason string }

// candidates gives the modes to try, the best one first.
func (c *config) candidates() ([]candidate, error) {
	switch c.Mode {
	case nftablesMode, iptablesMode:
		return []candidate{{c.Mode, "it is configured"}}, nil
	case "":
		return []candidate{
			{nftablesMode, "none is configured, and in this one a connection costs the same at any number of Services"},
			{iptablesMode, "none is configured, and " + nftablesMode + " cannot work here"},
		}, nil
	}
	return nil, fmt.Errorf("mode %q is none of %s and %s; leave it empty to have one chosen", c.Mode, nftablesMode, iptablesMode)
}

// open gives the backend of a mode.
func (c *config) open(mode string) (proxy.Backend, error) {
	bit := c.section(mode).MasqueradeBit
	if bit < 0 || bit > 31 {
		return nil, fmt.Errorf("%s.masqueradeBit: %d is not within 0 and 31", mode, bit)
	}
	if mode == nftablesMode {
		return nftables.New(nftables.Options{Identity: backends.Identity{Mark: 1 << bit}})
	}
	return iptables.New(iptables.Options{Identity: backends.Identity{Name: kubeProxyChains, Mark: 1 << bit}})
}

// resyncInterval is how often the backend of a mode is asked whether somebody
// meddled: it costs next to nothing where nf_tables counts its commits.
func (c *config) resyncInterval(mode string) time.Duration {
	usual := defaultSync
	if mode == nftablesMode {
		usual = time.Second
	}
	return cmp.Or(c.section(mode).SyncPeriod.Duration, usual)
}

// cleanUp removes the rules of this program and of kube-proxy, those of the mode
// except left alone. What the node lacks the means for cannot be there.
func cleanUp(ctx context.Context, except string, log logr.Logger) error {
	var errs []error
	remove := func(what string, b proxy.Backend, err error) {
		if err == nil {
			err = b.Cleanup(ctx)
		}
		switch {
		case errors.Is(err, proxy.ErrUnsupported) && !errors.Is(err, backends.ErrUnavailable):
			log.V(1).Info("nothing to remove", "what", what, "reason", err.Error())
		case err != nil:
			errs = append(errs, fmt.Errorf("remove %s: %w", what, err))
		}
	}
	if except != nftablesMode {
		b, err := nftables.New(nftables.Options{})
		remove("the tables "+backends.DefaultName, b, err)
	}
	b, err := nftables.New(nftables.Options{Identity: backends.Identity{Name: kubeProxyTables}})
	remove("the tables "+kubeProxyTables, b, err)
	if except != iptablesMode {
		// kube-proxy may have used another flavour than the one that is the default here.
		for _, flavour := range [...]iptables.Flavour{iptables.Default, iptables.Legacy, iptables.NFT} {
			b, err := iptables.New(iptables.Options{Flavour: flavour, Identity: backends.Identity{Name: kubeProxyChains}})
			remove(strings.TrimSuffix("the chains KUBE- of iptables-"+string(flavour), "-"), b, err)
		}
	}
	return errors.Join(errs...)
}
