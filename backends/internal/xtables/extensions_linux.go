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
// one missing extension at most, so diagnose probes all.
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
	case slices.EqualFunc(k.missingExtensions, missing, sameExtension):
		return cause // Check has refused the service ports that need them
	}
	k.missingExtensions = missing
	return fmt.Errorf("%w: some service ports cannot be served, because an extension is missing: %w", proxy.ErrDataplaneLost, cause)
}

// refresh reads the settings on which rules depend, and probes missing extensions again. If
// something has changed, its error requires a full apply, unless full is set.
func (k *kernel) refresh(ctx context.Context, full bool) error {
	var news error
	if k.Refresh != nil {
		news = k.programs.process.namespace.Do(func() error { return k.Refresh(full) })
	}
	if full && news != nil {
		return news
	}
	if len(k.missingExtensions) > 0 {
		missing, err := k.missing(ctx, k.missingExtensions)
		if err != nil {
			return err
		}
		if !slices.EqualFunc(k.missingExtensions, missing, sameExtension) {
			k.missingExtensions, news = missing, errors.New("an extension of iptables is no longer missing; applying everything again")
		}
	}
	if !full && news != nil {
		return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, news)
	}
	return nil
}

// Check implements [backends.Checker]: it refuses service ports that need a missing
// extension, or that the consumer refuses.
func (k *kernel) Check(_ *proxy.Node, port *proxy.ServicePort) error {
	if port.Name.Family != k.Family.Family {
		return nil
	}
	for i := range k.missingExtensions {
		if k.missingExtensions[i].IsFor(port) {
			return fmt.Errorf("%w: %s", proxy.ErrUnsupported, k.missingExtensions[i].remedy())
		}
	}
	if k.Family.Check == nil {
		return nil
	}
	return k.Family.Check(port)
}

// CheckLimits implements [backends.LimitChecker].
func (k *kernel) CheckLimits(_ *proxy.Node, port *proxy.ServicePort) []*proxy.Problem {
	if port.Name.Family != k.Family.Family || k.Family.CheckLimits == nil {
		return nil
	}
	return k.Family.CheckLimits(port)
}

// missing returns those of some extensions that are missing; if a table is missing, the
// table alone.
func (k *kernel) missing(ctx context.Context, of []Extension) (missing []Extension, err error) {
	for _, t := range k.names.tables() {
		some := slices.DeleteFunc(slices.Clone(of), func(e Extension) bool { return e.Table != t })
		lacking, err := k.missingOf(ctx, t, some)
		if err != nil {
			return nil, err
		}
		missing = append(missing, lacking...)
	}
	return missing, nil
}

// missingOf returns which extensions of a table the kernel refuses, if it does not refuse the table itself.
func (k *kernel) missingOf(ctx context.Context, t Table, of []Extension) (missing []Extension, err error) {
	if len(of) == 0 {
		return nil, nil
	}
	if refused, err := k.refusal(ctx, of); refused == "" || err != nil {
		return nil, err
	}
	refused, err := k.refusal(ctx, []Extension{{Table: t}})
	switch isMissing := strings.Contains(refused, "does not exist") || strings.Contains(refused, "insmod"); {
	case isMissing && of[0].Rule == "":
		return of[:1], nil
	case refused != "" || err != nil:
		return nil, err // the table refuses everything, for another reason
	}
	for i := range of {
		refused, err := k.refusal(ctx, of[i:i+1])
		if err != nil {
			return nil, err
		}
		if refused != "" {
			missing = append(missing, of[i])
		}
	}
	return missing, nil
}

func sameExtension(a, b Extension) bool { return a.Name == b.Name }

// refusal probes extensions of one table, and returns why a program refused them.
func (k *kernel) refusal(ctx context.Context, of []Extension) (string, error) {
	err := k.restore(ctx, k.names.probe(of))
	if isRefusal(err) {
		return err.Error(), nil
	}
	return "", err
}
