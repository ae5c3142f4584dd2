package agent

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

// parseIPVS checks and parses the section ipvs. Excluded ranges count in all modes, as they spare what kube-proxy has left.
func (c *config) parseIPVS() (errs []error) {
	for i, text := range c.IPVS.ExcludeCIDRs {
		p, err := netip.ParsePrefix(text)
		switch {
		case err == nil:
			c.excluded = append(c.excluded, p.Masked())
		case c.Mode == ipvsMode:
			errs = append(errs, fmt.Errorf("ipvs.excludeCIDRs[%d]: must be a valid CIDR: %w", i, err))
		default:
			c.warnings = append(c.warnings, fmt.Sprintf("ipvs.excludeCIDRs[%d] is ignored: must be a valid CIDR: %v", i, err))
		}
	}
	if c.Mode != ipvsMode {
		return errs
	}
	for _, t := range []struct {
		field string
		given time.Duration
	}{
		{"tcpTimeout", c.IPVS.TCPTimeout.Duration}, {"tcpFinTimeout", c.IPVS.TCPFinTimeout.Duration}, {"udpTimeout", c.IPVS.UDPTimeout.Duration},
	} {
		switch most := ipvs.LongestTimeout; {
		case t.given < 0:
			errs = append(errs, fmt.Errorf("ipvs.%s: %v: must be greater than or equal to 0", t.field, t.given))
		case t.given > most:
			errs = append(errs, fmt.Errorf("ipvs.%s: %v: must be at most %v", t.field, t.given, most))
		}
	}
	var err error
	c.scheduler, err = c.parseScheduler()
	return append(errs, err)
}

// parseScheduler checks the scheduler, and returns it in the form of the backend.
func (c *config) parseScheduler() (string, error) {
	if c.IPVS.Scheduler == "mh" {
		return "mh,mh-port", nil // as in kube-proxy
	}
	list := strings.Split(c.IPVS.Scheduler, ",")
	name := list[0]
	if c.IPVS.Scheduler != "" && !slices.Contains(ipvs.Schedulers(), name) {
		return "", fmt.Errorf("ipvs.scheduler: unknown scheduler %.40q, want one of %v", name, ipvs.Schedulers())
	}
	for _, flag := range list[1:] {
		if name != "mh" && name != "sh" || flag != name+"-fallback" && flag != name+"-port" {
			return "", fmt.Errorf("ipvs.scheduler: unknown flag %.40q of scheduler %q", flag, name)
		}
	}
	return c.IPVS.Scheduler, nil
}

// ipvsOptions returns the options of the backend of mode ipvs. The kernel counts timeouts in seconds.
func (c *config) ipvsOptions() ipvs.Options {
	return ipvs.Options{
		Identity: c.identity("", c.mark(ipvsMode)), Scheduler: c.scheduler, StrictARP: c.IPVS.StrictARP, DrainTimeout: c.DrainTimeout,
		TCPTimeout: c.IPVS.TCPTimeout.Truncate(time.Second), TCPFinTimeout: c.IPVS.TCPFinTimeout.Truncate(time.Second),
		UDPTimeout: c.IPVS.UDPTimeout.Truncate(time.Second),
	}
}

// prepareNode does what needs more privileges than CAP_NET_ADMIN. A node that does not support
// mode ipvs needs none of that for it, as the agent serves in another mode.
func (c *config) prepareNode(ctx context.Context, log logr.Logger) error {
	err := conntrackParameters(&c.Conntrack).Set()
	if c.Mode != ipvsMode {
		return err
	}
	failed := ipvs.PrepareNode(ctx, c.ipvsOptions())
	if errors.Is(failed, proxy.ErrUnsupported) {
		log.Info("mode unsupported on this node", "mode", ipvsMode, "reason", failed.Error())
		failed = nil
	}
	return errors.Join(err, failed)
}

// beginIPVS prepares the node for mode ipvs, and makes the backend keep the connections of the
// virtual servers of kube-proxy. It must be called before the first Apply.
func (c *config) beginIPVS(ctx context.Context, log logr.Logger) error {
	switch err := ipvs.PrepareNode(ctx, c.ipvsOptions()); {
	case errors.Is(err, proxy.ErrUnsupported):
		return err
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		log.Info("some settings of mode ipvs not set; run -init-only with more privileges", "reason", err.Error())
	case err != nil: // Apply tries again
		log.Error(err, "node not prepared for mode ipvs; retrying")
	}
	if c.Identity.Name != "" {
		return nil
	}
	return ipvstakeover.Adopt(c.excluded)
}
