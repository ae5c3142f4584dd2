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

// diagnose checks whether a commit was refused because extensions are missing. Service ports
// that need these cannot be served, and [kernel.Check] refuses them. The program names only
// one missing extension, so diagnose probes all.
func (k *kernel) diagnose(ctx context.Context, cause error, isFirst bool) error {
	stop, stopped := errors.AsType[*stopError](cause)
	switch {
	case !stopped, errors.Is(stop, backends.ErrUnavailable), errors.Is(stop, proxy.ErrDataplaneLost):
		return cause
	case !isFirst && !errors.Is(stop, proxy.ErrUnsupported):
		return cause
	}
	all := k.names.extensions(&k.Family)
	missing, err := k.missing(ctx, all)
	switch {
	case err != nil:
		return errors.Join(cause, err)
	case len(missing) == 0:
		stop.denyUnsupported()
		return cause
	}
	var needed []string
	for i := range missing {
		if missing[i].IsFor == nil {
			needed = append(needed, missing[i].remedy())
		}
	}
	if len(needed) > 0 {
		return fmt.Errorf("iptables: %w: %w: for %s, %s", backends.ErrUnavailable, proxy.ErrUnsupported, k.Family.Family, strings.Join(needed, "; "))
	}
	if slices.EqualFunc(k.missingExtensions, missing, sameExtension) {
		stop.denyUnsupported() // that was known, so Check has refused the service ports that need them
		return cause
	}
	k.missingExtensions = missing
	return fmt.Errorf("%w: some service ports cannot be served, because an extension is missing: %w", proxy.ErrDataplaneLost, cause)
}

// refresh reads the settings on which rules depend, and probes missing extensions again. If
// something has changed, its error requires a full apply, unless full is set.
func (k *kernel) refresh(ctx context.Context, full bool) error {
	var news error
	if k.Refresh != nil {
		news = k.programs.process.namespace.do(func() error { return k.Refresh(full) })
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
// table alone. It returns none if the programs refuse everything without a reason.
func (k *kernel) missing(ctx context.Context, of []Extension) (missing []Extension, err error) {
	for _, t := range k.names.tables() {
		some := slices.DeleteFunc(slices.Clone(of), func(e Extension) bool { return e.Table != t })
		if len(some) == 0 {
			continue
		}
		refused, err := k.refusal(ctx, some)
		if err != nil {
			return nil, err
		}
		if refused == nil {
			continue
		}
		lacking, err := k.missingOf(ctx, some)
		if err != nil {
			return nil, err
		}
		missing = append(missing, lacking...)
	}
	return missing, nil
}

// missingOf returns those of some extensions of one table that are refused, if the table
// itself is not. The legacy programs do not report why the kernel refuses a rule: it may be
// out of memory, or another program may have changed the table. So the same extensions must
// be refused at least twice more, otherwise none is missing.
func (k *kernel) missingOf(ctx context.Context, of []Extension) (missing []Extension, err error) {
	refused, err := k.refusal(ctx, []Extension{{Table: of[0].Table}})
	switch {
	case err != nil:
		return nil, err
	case refused != nil && of[0].Rule == "" && errors.Is(refused, proxy.ErrUnsupported):
		return of[:1], nil
	case refused != nil:
		return nil, nil //nolint:nilerr // The table refuses everything, so the probes of extensions mean nothing.
	}
	rest := []Extension{{Table: of[0].Table}}
	for _, e := range of {
		switch refused, err := k.refusal(ctx, []Extension{e}); {
		case err != nil:
			return nil, err
		case refused != nil:
			missing = append(missing, e)
		default:
			rest = append(rest, e)
		}
	}
	// Where few extensions are probed, chance explains few refusals as well.
	for range max(2, 8-len(of)) {
		if again, err := k.confirms(ctx, missing, rest); !again || err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// confirms reports whether each of the missing extensions is refused, and the rest are not.
func (k *kernel) confirms(ctx context.Context, missing, rest []Extension) (bool, error) {
	if refused, err := k.refusal(ctx, rest); refused != nil || err != nil {
		return false, err
	}
	for i := range missing {
		if refused, err := k.refusal(ctx, missing[i:i+1]); refused == nil || err != nil {
			return false, err
		}
	}
	return true, nil
}

func sameExtension(a, b Extension) bool { return a.Name == b.Name }

// refusal probes extensions of one table, and returns the failure of the program if they were
// refused.
func (k *kernel) refusal(ctx context.Context, of []Extension) (refused *stopError, err error) {
	err = k.run(ctx, k.names.probe(of))
	stop, stopped := errors.AsType[*stopError](err)
	if stopped && !errors.Is(stop, backends.ErrUnavailable) && !errors.Is(stop, proxy.ErrDataplaneLost) {
		return stop, nil
	}
	return nil, err
}
