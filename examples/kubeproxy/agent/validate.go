package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/proxy"
)

// parsed is what fields with text mean. validate sets it.
type parsed struct {
	nodeName    string
	nodeAddress []netip.Addr // of bindAddress; empty if it names none
	traffic     proxy.LocalTraffic
	nodePorts   proxy.NodePortAddresses
	// healthzAddress and metricsAddress have ports; they are empty for no server.
	healthzAddress, metricsAddress string
	// excluded are ipvs.excludeCIDRs, scheduler is ipvs.scheduler in the form of the backend.
	excluded   []netip.Prefix
	scheduler  string
	sourceVIPs []netip.Addr
}

// validate checks what kube-proxy checks too, and parses fields. It returns all errors; each begins with the path of
// the field. Sections of modes that cannot serve are not checked.
func (c *config) validate(settings []setting) error {
	var errs []error
	for _, s := range settings {
		if s.check == nil || c.isUnused(s.field) {
			continue
		}
		if err := s.check(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", cmp.Or(s.field, "-"+s.flag), err))
		}
	}
	errs = append(errs, c.checkGates()...)
	if err := c.checkMode(); err != nil {
		errs = append(errs, err)
	} else {
		for _, x := range c.candidates() {
			errs = append(errs, c.checkPeriods(x.mode))
		}
	}
	errs = append(errs, c.parseNode()...)
	if c.onWindows() {
		errs = append(errs, c.parseWindows()...)
	} else {
		errs = append(errs, c.parseIPVS()...)
	}
	return errors.Join(errs...)
}

// isUnused reports whether a field belongs to a section of a mode that cannot serve.
func (c *config) isUnused(field string) bool {
	section, _, _ := strings.Cut(field, ".")
	switch section {
	case nftablesMode:
		return c.Mode == iptablesMode || c.onWindows()
	case ipvsMode:
		return c.Mode != ipvsMode
	}
	return false
}

func (c *config) checkMode() error {
	switch c.Mode {
	case "":
		return nil
	case kernelspaceMode, userspaceMode:
		if c.onWindows() {
			return nil
		}
	case nftablesMode, iptablesMode, ipvsMode:
		if !c.onWindows() {
			return nil
		}
	}
	if c.onWindows() {
		return fmt.Errorf("mode %q: on Windows, want %s, %s, or empty for %[2]s", c.Mode, kernelspaceMode, userspaceMode)
	}
	return fmt.Errorf("mode %q: want %s, %s, %s, or empty to have one chosen", c.Mode, nftablesMode, iptablesMode, ipvsMode)
}

// checkPeriods returns an error for periods that kube-proxy refuses too. 0 is the default.
func (c *config) checkPeriods(mode string) error {
	s := c.section(mode)
	section := mode
	if mode == kernelspaceMode || mode == userspaceMode {
		section = iptablesMode // they have no section with these fields
	}
	switch every := cmp.Or(s.SyncPeriod.Duration, defaultSync); {
	case every < 0:
		return fmt.Errorf("%s.syncPeriod: %v is negative", section, every)
	case s.MinSyncPeriod.Duration < 0:
		return fmt.Errorf("%s.minSyncPeriod: %v is negative", section, s.MinSyncPeriod.Duration)
	case s.MinSyncPeriod.Duration > every:
		return fmt.Errorf("%s.minSyncPeriod: %v is longer than %[1]s.syncPeriod, %[3]v", section, s.MinSyncPeriod.Duration, every)
	}
	return nil
}

// parseWindows parses and checks settings that only modes of Windows have. A clean-up needs none of them.
func (c *config) parseWindows() (errs []error) {
	w := &c.Winkernel
	for text := range strings.FieldsFuncSeq(w.SourceVip, func(r rune) bool { return r == ',' || r == ' ' }) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("winkernel.sourceVip (flag -source-vip): %w", err))
		}
		c.sourceVIPs = append(c.sourceVIPs, a.Unmap())
	}
	if c.cleanup || c.writeTo != "" {
		return errs
	}
	if c.Mode == userspaceMode {
		if w.EnableDSR || w.ForwardHealthCheckVip || w.SourceVip != "" {
			errs = append(errs, fmt.Errorf("winkernel.enableDSR, winkernel.forwardHealthCheckVip and winkernel.sourceVip "+
				"(flags -enable-dsr, -forward-healthcheck-vip, -source-vip) are for mode %s, not %s", kernelspaceMode, userspaceMode))
		}
		return errs
	}
	if c.Addresses != (userspace.AddressOptions{}) {
		errs = append(errs, fmt.Errorf("flags -interface and -netsh are for mode %s, not %s", userspaceMode, kernelspaceMode))
	}
	if c.network() == "" {
		errs = append(errs, errors.New("winkernel.networkName (flag -network-name) or the variable KUBE_NETWORK is required: the name of the HNS network of the pods"))
	}
	if w.ForwardHealthCheckVip && (c.healthzPort == 0 || c.Hooks.NoListen) {
		errs = append(errs, errors.New("winkernel.forwardHealthCheckVip: nothing listens for health checks, because of -healthz-port 0 or the hook NoListen"))
	}
	return errs
}
