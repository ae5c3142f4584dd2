//go:build ipvs

package ipvs

import (
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// settings returns the values of settings that the backend may change.
func (s *stage) settings(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{"timeouts": s.run(t, "ipvsadm -L --timeout")}
	err := s.NS.Do(func() error {
		for _, name := range []string{
			settingConntrack, settingNoDest, settingQuiescent, settingForward, settingARPIgnore, settingARPAnnounce,
		} {
			path, _ := sysctl(name)
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			all[name] = strings.TrimSpace(string(text))
		}
		return nil
	})
	testenv.NoError(t, err)
	return all
}

func (s *stage) set(t testing.TB, name, value string) {
	t.Helper()
	path, _ := sysctl(name)
	testenv.NoError(t, s.NS.Do(func() error { return os.WriteFile(path, []byte(value), 0o644) }))
}

// Cleanup restores the settings, also those that an earlier process changed, except for those
// that another program has changed since.
func TestSettings(t *testing.T) {
	s := newStage(t, Options{StrictARP: true, TCPTimeout: 100 * time.Second, UDPTimeout: 50 * time.Second})
	for name, value := range map[string]string{settingForward: "0", settingARPAnnounce: "1", settingNoDest: "0"} {
		s.set(t, name, value)
	}
	s.run(t, "ipvsadm --set 800 90 200")
	before := s.settings(t)
	world := snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2))
	s.Apply(t, world)
	want := map[string]string{
		settingConntrack: "1", settingNoDest: "1", settingQuiescent: "1", settingForward: "1", settingARPIgnore: "1", settingARPAnnounce: "2",
		"timeouts": strings.NewReplacer("800", "100", "200", "50").Replace(before["timeouts"]),
	}
	if diff := cmp.Diff(want, s.settings(t)); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	s.adopts(t, world)
	s.set(t, settingQuiescent, "0") // repaired by the next Apply that knows nothing
	s.adopts(t, world)
	if diff := cmp.Diff(want, s.settings(t)); diff != "" {
		t.Errorf("settings after restarts (-want +got):\n%s", diff)
	}
	s.restart(t)
	s.set(t, settingARPIgnore, "8")
	after := maps.Clone(before)
	after[settingARPIgnore] = "8"
	if err := s.backend(t).Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup: got error %v, want none", err)
	}
	if diff := cmp.Diff(after, s.settings(t)); diff != "" {
		t.Errorf("settings after Cleanup (-want +got):\n%s", diff)
	}
}

// Cleanup leaves settings that a backend of another identity needs as they are.
func TestSettingsOfTwoIdentities(t *testing.T) {
	one := newStage(t, Options{StrictARP: true})
	one.Apply(t, snapshotOf(localPort(1)))
	other := &stage{one.Beside(t, Options{Identity: backends.Identity{Name: "other", Mark: 0x8000}}), one.kernel}
	want := one.settings(t)
	other.Apply(t, snapshotOf(localPort(11)))
	if err := one.backend(t).Cleanup(t.Context()); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, one.settings(t)); diff != "" {
		t.Errorf("settings after Cleanup of one (-before +after):\n%s", diff)
	}
}

// Without StrictARP, the settings of ARP stay.
func TestNoStrictARP(t *testing.T) {
	s := newStage(t, Options{})
	before := s.settings(t)
	s.Apply(t, snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2)))
	after := s.settings(t)
	for _, name := range []string{settingARPIgnore, settingARPAnnounce, "timeouts"} {
		if before[name] != after[name] {
			t.Errorf("%s: got %q, want it to stay %q", name, after[name], before[name])
		}
	}
}

// Options of another process replace settings, and restore those that they do not have. The
// former values stay those of before the first one.
func TestSettingsOfOtherOptions(t *testing.T) {
	s := newStage(t, Options{StrictARP: true, TCPTimeout: 100 * time.Second, UDPTimeout: 50 * time.Second})
	s.run(t, "ipvsadm --set 900 90 300")
	before := s.settings(t)
	world := snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2))
	s.Apply(t, world)
	s.Options.StrictARP, s.Options.TCPTimeout, s.Options.UDPTimeout = false, 200*time.Second, 0
	s.adopts(t, world)
	want := maps.Clone(before)
	want[settingConntrack], want[settingNoDest], want[settingQuiescent], want[settingForward] = "1", "1", "1", "1"
	want["timeouts"] = strings.Replace(before["timeouts"], "900", "200", 1)
	if diff := cmp.Diff(want, s.settings(t)); diff != "" {
		t.Errorf("settings with other options (-want +got):\n%s", diff)
	}
	if err := s.backend(t).Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup: got error %v, want none", err)
	}
	if diff := cmp.Diff(before, s.settings(t)); diff != "" {
		t.Errorf("settings after Cleanup (-want +got):\n%s", diff)
	}
}

// readOnly makes /proc/sys read-only until end is called.
func readOnly(t testing.TB) (end func()) {
	t.Helper()
	const path = "/proc/sys"
	testenv.NoError(t, unix.Mount(path, path, "", unix.MS_BIND, ""))
	end = sync.OnceFunc(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	testenv.NoError(t, unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	return end
}

// What the backend could not write is not its own: Cleanup leaves what another program has written
// instead.
func TestSettingsNotWritten(t *testing.T) {
	s := newStage(t, Options{TCPTimeout: 100 * time.Second})
	s.set(t, settingForward, "0")
	writable := readOnly(t)
	for range 2 {
		if err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, snapshotOf()); !errors.Is(err, unix.EROFS) {
			t.Errorf("Apply with a read-only /proc/sys: got error %v, want %v", err, unix.EROFS)
		}
	}
	writable()
	s.set(t, settingForward, "1") // the operator
	s.run(t, "ipvsadm --set 100 0 0")
	want := s.settings(t)
	s.Apply(t, snapshotOf())
	if err := s.backend(t).Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup: got error %v, want none", err)
	}
	after := s.settings(t)
	for _, name := range []string{settingForward, "timeouts"} {
		if after[name] != want[name] {
			t.Errorf("%s after Cleanup: got %q, want %q", name, after[name], want[name])
		}
	}
}

// Cleanup that cannot restore the settings fails and keeps their former values, so that a later one
// restores them, also by another process.
func TestSettingsNotRestored(t *testing.T) {
	s := newStage(t, Options{StrictARP: true, UDPTimeout: 50 * time.Second})
	before := s.settings(t)
	s.Apply(t, snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2)))
	writable := readOnly(t)
	for range 2 {
		if err := s.backend(t).Cleanup(t.Context()); !errors.Is(err, unix.EROFS) {
			t.Errorf("Cleanup with a read-only /proc/sys: got error %v, want %v", err, unix.EROFS)
		}
	}
	if got := s.run(t, "ip -br addr show dev vipkit-ipvs0"); strings.Contains(got, "/32") {
		t.Errorf("addresses of the device: got %s, want none", got)
	}
	writable()
	s.restart(t)
	if err := s.backend(t).Cleanup(t.Context()); err != nil {
		t.Errorf("Cleanup: got error %v, want none", err)
	}
	if diff := cmp.Diff(before, s.settings(t)); diff != "" {
		t.Errorf("settings after Cleanup (-before +after):\n%s", diff)
	}
	if got := s.dump(t); got != "" {
		t.Errorf("own objects after Cleanup: got\n%s\nwant none", got)
	}
}

// The process remembers the former values if another program removes the device.
func TestSettingsOfRemovedDevice(t *testing.T) {
	for _, between := range []func(*stage){func(*stage) {}, func(s *stage) {
		s.Applied = proxy.Snapshot{}
		s.Apply(t, snapshotOf())
	}} {
		s := newStage(t, Options{StrictARP: true, UDPTimeout: 50 * time.Second})
		before := s.settings(t)
		s.Apply(t, snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2)))
		s.run(t, "ip link del vipkit-ipvs0")
		between(s)
		if err := s.backend(t).Cleanup(t.Context()); err != nil {
			t.Errorf("Cleanup: got error %v, want none", err)
		}
		if diff := cmp.Diff(before, s.settings(t)); diff != "" {
			t.Errorf("settings after Cleanup (-before +after):\n%s", diff)
		}
	}
}
