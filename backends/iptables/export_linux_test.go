package iptables

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// OwnLock gives a test a lock of its own, so that it neither waits for other
// programs of the machine nor has them wait.
func OwnLock(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lock")
	t.Setenv("XTABLES_LOCKFILE", path)
	return path
}

// NeedPrograms ends a test where the programs of a flavour are not installed, or
// the kernel does not know their tables.
func NeedPrograms(t testing.TB, o Options) {
	t.Helper()
	OwnLock(t)
	err := netnstest.NewNS(t).Do(func() error { return Prepare(t.Context(), o) })
	if errors.Is(err, proxy.ErrUnsupported) {
		testenv.CannotRun(t, err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Dump gives everything of an identity in the namespace of the calling thread,
// with everything in order whose order means nothing.
func Dump(ctx context.Context, o Options) (string, error) {
	o, err := o.complete()
	if err != nil {
		return "", err
	}
	at, err := here()
	if err != nil {
		return "", err
	}
	var out []string
	for _, family := range o.Families {
		p, err := findPrograms(ctx, &o, family, at)
		if err != nil {
			return "", err
		}
		n := newNames(o.Identity.Name)
		found, _, err := p.find(ctx, n, nil)
		if err != nil {
			return "", err
		}
		for ref, rules := range found {
			if n.isOpen(ref.name) {
				slices.Sort(rules)
			}
			out = append(out, string(family)+" "+ref.table.String()+" "+ref.name+"\n"+lines(rules))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n"), nil
}

// Prepare makes the chains of the kernel's own, as far as a backend uses them, in
// the namespace of the calling thread. Once they exist, they belong to nobody:
// iptables cannot remove them.
func Prepare(ctx context.Context, o Options) error {
	o, err := o.complete()
	if err != nil {
		return err
	}
	at, err := here()
	if err != nil {
		return err
	}
	const hooks = "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n" +
		"*nat\n:PREROUTING ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n"
	for _, family := range o.Families {
		p, err := findPrograms(ctx, &o, family, at)
		if err != nil {
			return err
		}
		if err := p.restore(ctx, []byte(hooks)); err != nil {
			return err
		}
	}
	return nil
}
