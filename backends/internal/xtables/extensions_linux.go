package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// diagnose checks whether everything was refused because extensions are missing. Service ports
// that need these cannot be served, and [kernel.Check] refuses them. The program names only
// one missing extension at most, so diagnose tries all.
func (k *kernel) diagnose(ctx context.Context, cause error) error {
	if !isRefusal(cause) {
		return cause
	}
	missing, err := k.missing(ctx, k.names.extensions(&k.Family))
	if err != nil {
		return errors.Join(cause, err)
	}
	var needed []string
	for i := range missing {
		if missing[i].IsFor == nil {
			needed = append(needed, missing[i].remedy())
		}
	}
	switch {
	case len(needed) > 0:
		return fmt.Errorf("iptables: %w: %w: for %s, %s", backends.ErrUnavailable, proxy.ErrUnsupported, k.Family.Family, strings.Join(needed, "; "))
	case len(missing) == len(k.missingExtensions):
		return cause // Check has refused the service ports that need them
	}
	k.missingExtensions = missing
	return fmt.Errorf("%w: some service ports cannot be served, because an extension is missing: %w", proxy.ErrDataplaneLost, cause)
}

// refresh reads the settings on which rules depend, and tries missing extensions again, before a full apply.
func (k *kernel) refresh(ctx context.Context) (err error) {
	if k.Family.Facts != nil {
		err = k.programs.namespace.Do(func() (err error) {
			k.facts, err = k.Family.Facts()
			return err
		})
	}
	if err == nil && len(k.missingExtensions) > 0 {
		k.missingExtensions, err = k.missing(ctx, k.missingExtensions)
	}
	return err
}

// Check is Check of [backends.TargetAbilities]: it refuses service ports that need a missing extension.
func (k *kernel) Check(_ backends.Env, port *proxy.ServicePort) error {
	for i := range k.missingExtensions {
		if port.Name.Family == k.Family.Family && k.missingExtensions[i].IsFor(port) {
			return fmt.Errorf("%w: %s", proxy.ErrUnsupported, k.missingExtensions[i].remedy())
		}
	}
	return nil
}

// missing returns which of some extensions are missing. If a table refuses everything, that is the table
// alone, or nothing if the reason is another one.
func (k *kernel) missing(ctx context.Context, of []Extension) (missing []Extension, err error) {
	for _, t := range k.names.tables() {
		some := slices.DeleteFunc(slices.Clone(of), func(e Extension) bool { return e.Table != t })
		if len(some) == 0 {
			continue
		}
		if refusal := k.probe(ctx, t, ""); isRefusal(refusal) {
			says := refusal.Error()
			if some[0].Rule == "" && (strings.Contains(says, "does not exist") || strings.Contains(says, "insmod")) {
				missing = append(missing, some[0])
			}
			continue
		}
		lacks, err := k.missingIn(ctx, t, some)
		if err != nil {
			return nil, err
		}
		missing = append(missing, lacks...)
	}
	return missing, nil
}

// missingIn returns which of some extensions a table lacks that exists itself.
func (k *kernel) missingIn(ctx context.Context, t Table, some []Extension) (missing []Extension, err error) {
	for _, e := range some {
		if err := k.probe(ctx, t, e.Rule); isRefusal(err) {
			missing = append(missing, e)
		} else if err != nil {
			return nil, err
		}
	}
	return missing, k.write(ctx, []Op{{Kind: backends.Remove, Key: Key{Table: t, Chain: k.names.Canary()}}})
}

// probe tries a rule, or a table without one.
func (k *kernel) probe(ctx context.Context, t Table, rule string) error {
	_, err := k.try(ctx, []Op{{Key: Key{Table: t, Rule: rule, Chain: k.names.Canary()}}}, nil)
	return err
}
