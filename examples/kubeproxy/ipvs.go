package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/examples/kubeproxy/ipvstakeover"
	"github.com/vipkit/vipkit/proxy"
)

// ipvsConfig is the section of mode ipvs. What it lacks is in that of iptables.
type ipvsConfig struct {
	SyncPeriod    duration
	MinSyncPeriod duration
	// Scheduler is for all Services without an annotation. With mh the client's port counts too, as
	// in kube-proxy; with mh,mh-fallback it does not.
	Scheduler string
	// ExcludeCIDRs are the ranges of virtual servers that are not removed with what
	// kube-proxy left. This program's own ones never conflict with other programs'.
	ExcludeCIDRs  []string
	StrictARP     bool
	TCPTimeout    duration
	TCPFinTimeout duration
	UDPTimeout    duration
}

// options checks the section and returns the options of the backend.
func (c *ipvsConfig) options() (o ipvs.Options, err error) {
	o.StrictARP = c.StrictARP
	if o.Scheduler, err = c.scheduler(); err != nil {
		return o, err
	}
	for _, t := range []struct {
		field string
		from  duration
		into  *time.Duration
	}{
		{"tcpTimeout", c.TCPTimeout, &o.TCPTimeout},
		{"tcpFinTimeout", c.TCPFinTimeout, &o.TCPFinTimeout},
		{"udpTimeout", c.UDPTimeout, &o.UDPTimeout},
	} {
		if t.from.Duration < 0 {
			return o, fmt.Errorf("ipvs.%s: %v: must be greater than or equal to 0", t.field, t.from)
		}
		if most := ipvs.LongestTimeout; t.from.Duration > most {
			return o, fmt.Errorf("ipvs.%s: %v: must be at most %v", t.field, t.from, most)
		}
		*t.into = t.from.Truncate(time.Second) // the kernel's unit
	}
	_, err = c.excluded()
	return o, err
}

// scheduler checks the scheduler, and returns it in the form of the backend.
func (c *ipvsConfig) scheduler() (string, error) {
	if c.Scheduler == "mh" {
		return "mh,mh-port", nil // as in kube-proxy
	}
	list := strings.Split(c.Scheduler, ",")
	name := list[0]
	if c.Scheduler != "" && !slices.Contains(ipvs.Schedulers(), name) {
		return "", fmt.Errorf("ipvs.scheduler: unknown scheduler %.40q, want one of %v", name, ipvs.Schedulers())
	}
	for _, flag := range list[1:] {
		if name != "mh" && name != "sh" || flag != name+"-fallback" && flag != name+"-port" {
			return "", fmt.Errorf("ipvs.scheduler: unknown flag %.40q of scheduler %q", flag, name)
		}
	}
	return c.Scheduler, nil
}

// excluded returns the ranges of ExcludeCIDRs.
func (c *ipvsConfig) excluded() (all []netip.Prefix, err error) {
	for i, text := range c.ExcludeCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("ipvs.excludeCIDRs[%d]: must be a valid CIDR: %w", i, err)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// ipvsOptions returns the options of the backend of mode ipvs.
func (c *config) ipvsOptions() (ipvs.Options, error) {
	o, err := c.IPVS.options()
	if err != nil {
		return o, err
	}
	o.DrainTimeout = c.drainTimeout
	o.Identity.Mark, err = c.mark(ipvsMode)
	return o, err
}

// prepareNode does what needs more privileges than CAP_NET_ADMIN. A node that does not support
// mode ipvs needs none of that for it, as the agent serves in another mode.
func (c *config) prepareNode(ctx context.Context, log logr.Logger) error {
	err := c.Conntrack.prepare()
	if c.Mode != ipvsMode {
		return err
	}
	o, failed := c.ipvsOptions()
	if failed == nil {
		failed = ipvs.PrepareNode(ctx, o)
	}
	if errors.Is(failed, proxy.ErrUnsupported) {
		log.Info("mode unsupported on this node", "mode", ipvsMode, "reason", failed.Error())
		failed = nil
	}
	return errors.Join(err, failed)
}

// beginIPVS prepares the node for mode ipvs, and makes the backend keep the connections of the
// virtual servers of kube-proxy. It must be called before the first Apply.
func (c *config) beginIPVS(ctx context.Context, log logr.Logger) error {
	o, err := c.ipvsOptions()
	if err != nil {
		return err
	}
	switch err := ipvs.PrepareNode(ctx, o); {
	case errors.Is(err, proxy.ErrUnsupported):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		log.Info("some settings of mode ipvs not set; run -init-only with more privileges", "reason", err.Error())
	case err != nil: // Apply tries again
		log.Error(err, "node not prepared for mode ipvs; retrying")
	}
	exclude, err := c.IPVS.excluded()
	if err != nil {
		return err
	}
	return ipvstakeover.Adopt(exclude)
}
