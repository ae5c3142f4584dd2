package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// diagnose finds out whether a commit was refused because extensions are missing, which
// is no fault of the service ports that need them. It tries that once for all: a program
// that is told of many service ports names the first extension that it misses.
func (k *kernel) diagnose(ctx context.Context, cause error, isFirst bool) error {
	stop, stopped := errors.AsType[*stopError](cause)
	switch {
	case !stopped, errors.Is(stop, backends.ErrUnavailable), errors.Is(stop, proxy.ErrDataplaneLost):
		return cause
	case !isFirst && !errors.Is(stop, proxy.ErrUnsupported):
		return cause
	}
	all := k.renderer.extensions()
	missing, err := k.missing(ctx, all)
	switch {
	case err != nil:
		return errors.Join(cause, err)
	case len(missing) == 0:
		return cause
	}
	var needed []string
	for i := range missing {
		if missing[i].isFor == nil {
			needed = append(needed, missing[i].remedy())
		}
	}
	if len(needed) > 0 {
		return fmt.Errorf("iptables: %w: %w: for %s, %s", backends.ErrUnavailable, proxy.ErrUnsupported, k.renderer.family, strings.Join(needed, "; "))
	}
	if k.renderer.lacksAs(missing) {
		return cause // it was known, and no such service port has been asked for
	}
	k.renderer.lacks = missing
	return fmt.Errorf("%w: some service ports cannot be served, because an extension is missing: %w", proxy.ErrDataplaneLost, cause)
}

// refresh asks again for what was missing, and reports whether there is news.
func (k *kernel) refresh(ctx context.Context) (news bool, err error) {
	if len(k.renderer.lacks) == 0 {
		return false, nil
	}
	missing, err := k.missing(ctx, k.renderer.lacks)
	news = err == nil && !k.renderer.lacksAs(missing)
	if news {
		k.renderer.lacks = missing
	}
	return news, err
}

// lacksAs reports whether extensions are those that are known to be missing.
func (r *renderer) lacksAs(missing []extension) bool {
	return slices.EqualFunc(r.lacks, missing, sameExtension)
}

// missing gives those of some extensions that are missing; of a table that is, that alone.
// Where everything is refused for a reason that nobody gives, none is.
func (k *kernel) missing(ctx context.Context, of []extension) (missing []extension, err error) {
	for _, t := range []table{nat, filter} {
		some := slices.DeleteFunc(slices.Clone(of), func(e extension) bool { return e.table != t })
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

// missingOf gives those of some extensions of one table that are refused, when the table
// itself is not. The legacy programs do not say why the kernel refuses a rule, which may be
// that it is short of memory or that others change the table. So that must be seen again,
// twice; where it is not, there is another reason, and none is missing.
func (k *kernel) missingOf(ctx context.Context, of []extension) (missing []extension, err error) {
	refused, err := k.refusal(ctx, []extension{{table: of[0].table}})
	switch {
	case err != nil:
		return nil, err
	case refused != nil && of[0].rule == "" && errors.Is(refused, proxy.ErrUnsupported):
		return of[:1], nil
	case refused != nil:
		return nil, nil //nolint:nilerr // Of extensions of a table that refuses everything, nothing is known.
	}
	rest := []extension{{table: of[0].table}}
	for _, e := range of {
		switch refused, err := k.refusal(ctx, []extension{e}); {
		case err != nil:
			return nil, err
		case refused != nil:
			missing = append(missing, e)
		default:
			rest = append(rest, e)
		}
	}
	for range 2 {
		if again, err := k.confirms(ctx, missing, rest); !again || err != nil {
			return nil, err
		}
	}
	return missing, nil
}

// confirms reports whether each of some extensions is refused, and all others together are not.
func (k *kernel) confirms(ctx context.Context, missing, rest []extension) (bool, error) {
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

func sameExtension(a, b extension) bool { return a.name == b.name }

// refusal writes rules with extensions of one table, and gives how that was refused.
func (k *kernel) refusal(ctx context.Context, of []extension) (refused *stopError, err error) {
	err = k.programs.restore(ctx, k.renderer.probe(of).text)
	k.watch.committed(ctx, 2, err)
	stop, stopped := errors.AsType[*stopError](err)
	if stopped && !errors.Is(stop, backends.ErrUnavailable) && !errors.Is(stop, proxy.ErrDataplaneLost) {
		return stop, nil
	}
	return nil, err
}
