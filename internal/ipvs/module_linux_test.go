//go:build ipvs

package ipvs

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// A scheduler whose module cannot be loaded is missing like one that does not exist.
func TestMissingScheduler(t *testing.T) {
	c := open(t)
	web := byAddr(6, "192.0.2.1:80")
	end := netnstest.WithoutModule(t, "ip_vs_ovf")
	add := []Op{AddService(web, ServiceConfig{Scheduler: OVF})}
	failed, err := c.Do(t.Context(), add)
	if err != nil || len(failed) != 1 || !errors.Is(&failed[0], unix.ENOENT) {
		t.Errorf("without the module: got failures %v and error %v, want ENOENT", texts(failed), err)
	}
	end()
	do(t, c, add...)
	do(t, c, DelService(web))
}

// A connection notices that ip_vs was unloaded, and works again as soon as it is loaded.
func TestUnloaded(t *testing.T) {
	c := open(t)
	web := byAddr(6, "192.0.2.1:80")
	ctx := t.Context()
	calls := map[string]func() error{
		"Do": func() error {
			_, err := c.Do(ctx, []Op{DelService(web), AddService(web, ServiceConfig{Scheduler: RR}), DelService(web)})
			return err
		},
		"Services":     func() error { _, err := c.Services(ctx); return err },
		"Destinations": func() error { _, err := c.Destinations(ctx, web); return err },
		"Timeouts":     func() error { _, err := c.Timeouts(ctx); return err },
		"SetTimeouts":  func() error { return c.SetTimeouts(ctx, Timeouts{TCP: 800}) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			if err := call(); err != nil {
				t.Fatalf("with ip_vs: got error %v, want none", err)
			}
			end := netnstest.WithoutModule(t, "ip_vs")
			for range 2 {
				if err := call(); !errors.Is(err, ErrMissing) {
					t.Errorf("without ip_vs: got error %v, want ErrMissing", err)
				}
			}
			end()
			if err := call(); !errors.Is(err, ErrReloaded) {
				t.Errorf("after ip_vs was loaded: got error %v, want ErrReloaded", err)
			}
			if err := call(); err != nil {
				t.Errorf("with ip_vs again: got error %v, want none", err)
			}
			netnstest.Unload(t, "ip_vs")
			if err := call(); !errors.Is(err, ErrReloaded) {
				t.Errorf("after the call loaded ip_vs: got error %v, want ErrReloaded", err)
			}
		})
	}
	netnstest.WithoutModule(t, "ip_vs")
	ns := netnstest.NewNS(t)
	err := ns.Do(func() error {
		_, err := Open()
		return err
	})
	if !errors.Is(err, ErrMissing) {
		t.Errorf("Open without ip_vs: got error %v, want ErrMissing", err)
	}
}
