package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// validate checks what kube-proxy checks too. Each error begins with the path of the field. Sections of
// modes that are not used are not checked.
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
	errs = append(errs, c.checkMode(), c.checkGates())
	for _, mode := range c.possibleModes() {
		errs = append(errs, c.checkPeriods(mode))
	}
	if c.Mode == ipvsMode {
		_, err := c.ipvsOptions()
		errs = append(errs, err)
	}
	if max(c.healthzPort, c.metricsPort) <= maxPort && min(c.healthzPort, c.metricsPort) >= 0 {
		_, _, err := c.addresses()
		errs = append(errs, err)
	}
	o, err := c.tracker(c.possibleModes()[0])
	c.noteRanges(o.LocalTraffic.Sources)
	c.warnOfLoopback()
	return distinct(append(errs, err)...)
}

// noteRanges notes ranges of pods that count here, and that kube-proxy refuses.
func (c *config) noteRanges(ranges []netip.Prefix) {
	v4 := 0
	for _, r := range ranges {
		if r.Addr().Is4() {
			v4++
		}
	}
	if v4 > 1 || len(ranges)-v4 > 1 {
		c.notes = append(c.notes, fmt.Sprintf("clusterCIDR: all %d ranges count; kube-proxy takes one of each IP family", len(ranges)))
	}
}

// distinct joins errors, each text once.
func distinct(errs ...error) error {
	var out []error
	seen := map[string]bool{}
	for _, err := range errs {
		if all, is := err.(interface{ Unwrap() []error }); is {
			err = distinct(all.Unwrap()...)
		}
		if err != nil && !seen[err.Error()] {
			seen[err.Error()] = true
			out = append(out, err)
		}
	}
	return errors.Join(out...)
}

// isUnused reports whether a field belongs to a section of a mode that cannot serve.
func (c *config) isUnused(field string) bool {
	section, _, _ := strings.Cut(field, ".")
	switch section {
	case nftablesMode:
		return c.Mode != nftablesMode && c.Mode != "" || c.onWindows()
	case ipvsMode:
		return c.Mode != ipvsMode
	}
	return false
}

// possibleModes returns the modes that the configuration names, or that are chosen from if it names none.
func (c *config) possibleModes() []string {
	switch {
	case c.Mode != "":
		return []string{string(c.Mode)}
	case c.onWindows():
		return []string{kernelspaceMode}
	}
	return []string{nftablesMode, iptablesMode}
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
