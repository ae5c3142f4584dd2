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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/examples/kubeproxy/ipvstakeover"
	"github.com/vipkit/vipkit/proxy"
)

// ipvsSection checks the section ipvs and returns the options of the backend that it has. What it lacks is in that of iptables.
func (c *config) ipvsSection() (o ipvs.Options, err error) {
	o.StrictARP = c.IPVS.StrictARP
	var errs []error
	if o.Scheduler, err = c.scheduler(); err != nil {
		errs = append(errs, err)
	}
	for _, t := range []struct {
		field string
		from  metav1.Duration
		into  *time.Duration
	}{
		{"tcpTimeout", c.IPVS.TCPTimeout, &o.TCPTimeout},
		{"tcpFinTimeout", c.IPVS.TCPFinTimeout, &o.TCPFinTimeout},
		{"udpTimeout", c.IPVS.UDPTimeout, &o.UDPTimeout},
	} {
		switch given, most := t.from.Duration, ipvs.LongestTimeout; {
		case given < 0:
			errs = append(errs, fmt.Errorf("ipvs.%s: %v: must be greater than or equal to 0", t.field, given))
		case given > most:
			errs = append(errs, fmt.Errorf("ipvs.%s: %v: must be at most %v", t.field, given, most))
		}
		*t.into = t.from.Truncate(time.Second) // the kernel's unit
	}
	_, err = c.excluded()
	return o, errors.Join(append(errs, err)...)
}

// scheduler checks the scheduler, and returns it in the form of the backend.
func (c *config) scheduler() (string, error) {
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

// excluded returns the ranges of ExcludeCIDRs.
func (c *config) excluded() (all []netip.Prefix, err error) {
	for i, text := range c.IPVS.ExcludeCIDRs {
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
	o, err := c.ipvsSection()
	if err != nil {
		return o, err
	}
	o.DrainTimeout = c.DrainTimeout
	mark, err := c.mark(ipvsMode)
	o.Identity = c.identity("", mark)
	return o, err
}

// prepareNode does what needs more privileges than CAP_NET_ADMIN. A node that does not support
// mode ipvs needs none of that for it, as the agent serves in another mode.
func (c *config) prepareNode(ctx context.Context, log logr.Logger) error {
	err := conntrackParameters(&c.Conntrack).Set()
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
	exclude, err := c.excluded()
	if err != nil || c.Identity.Name != "" {
		return err
	}
	return ipvstakeover.Adopt(exclude)
}
