package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unique"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
)

// Cleanup removes everything that backends of these options have programmed in the network namespace
// of the calling thread, as the Cleanup of such a backend does. Settings of the kernel stay. It needs what [New]
// needs, except for IPVS: if ip_vs has been unloaded, and all virtual servers with it, Cleanup removes the rest and
// does not load it again.
func Cleanup(ctx context.Context, options Options) error {
	t, err := newTarget(options, openIfLoaded)
	if err != nil {
		return err
	}
	return errors.Join(t.Cleanup(ctx), t.Close())
}

// openIfLoaded opens a connection to IPVS, or returns none if ip_vs has been unloaded.
func openIfLoaded() (*ipvs.Conn, error) {
	if isUnloaded("/proc/net") {
		return nil, nil //nolint:nilnil // a target may lack it
	}
	return ipvs.Open()
}

// isUnloaded reports whether a folder has files about the network, and none about IPVS. In some
// containers /proc has none of them, whatever the kernel has.
func isUnloaded(folder string) bool {
	_, any := os.Stat(filepath.Join(folder, "dev"))
	_, own := os.Stat(filepath.Join(folder, "ip_vs"))
	return any == nil && errors.Is(own, fs.ErrNotExist)
}

// Cleanup is Cleanup of [backends.TargetAbilities].
func (t *target) Cleanup(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	// While virtual servers exist, so must the rules, which protect some from sources that are
	// not allowed, and the sets, by which the backend knows edited ones. Without ip_vs there are none.
	if err := t.removeServers(ctx); err != nil && !errors.Is(err, ipvs.ErrMissing) {
		return err
	}
	t.rules.written = unique.Handle[string]{}
	errs := []error{t.device.remove(), t.rules.Cleanup(ctx)}
	for _, f := range t.options.Families {
		for _, s := range allSets() {
			errs = append(errs, t.sets.Destroy(setName(t.prefix, f, s)))
		}
	}
	return errors.Join(errs...)
}

// removeServers removes the virtual servers of the backend. New connections are rejected before: without
// a server, those to addresses of Services would reach processes of the node.
func (t *target) removeServers(ctx context.Context) error {
	if t.kernel == nil {
		return ipvs.ErrMissing
	}
	defer func() { t.drainer.of = draining{} }()
	if err := ctx.Err(); err != nil { // before the first flush, which would reject connections for nothing
		return fmt.Errorf("ipvs: %w", err)
	}
	l, err := t.list(nil)
	if err != nil {
		return fmt.Errorf("ipvs: listing: %w", err)
	}
	if err := t.flushFrontends(); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	for i := range l.found {
		o := &op{Kind: backends.Remove, Key: l.found[i].Key}
		if o.Key.kind != kindServer {
			continue
		}
		// Another program may have removed it, or it was listed twice.
		if err := t.kernel.Do(t.request(o, false)); err != nil && !errors.Is(err, unix.ESRCH) {
			return t.refusal(o, err)
		}
	}
	return nil
}

// flushFrontends empties the sets of frontends.
func (t *target) flushFrontends() error {
	for _, f := range t.options.Families {
		for _, s := range frontendSets() {
			if err := t.sets.Flush(setName(t.prefix, f, s)); err != nil {
				return err
			}
		}
	}
	return nil
}
