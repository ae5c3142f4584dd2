//go:build ipvs

package ipvs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// settings returns the values of settings that the backend may change, without their folder.
func (s *stage) settings(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{"timeouts": s.run(t, "ipvsadm -L --timeout")}
	err := s.NS.Do(func() error {
		for path := range (&Options{StrictARP: true, Families: []v1.IPFamily{v1.IPv4Protocol}}).settings() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			all[filepath.Base(path)] = strings.TrimSpace(string(text))
		}
		return nil
	})
	testenv.NoError(t, err)
	return all
}

func (s *stage) set(t testing.TB, name, value string) {
	t.Helper()
	testenv.NoError(t, s.NS.Do(func() error { return os.WriteFile(sysctls+name, []byte(value), 0o644) }))
}

// Each process writes the settings that it needs, and no others; Cleanup leaves them.
func TestSettings(t *testing.T) {
	s := newStage(t, Options{})
	for name, value := range map[string]string{"ip_forward": "0", "conf/all/arp_announce": "1", "vs/expire_nodest_conn": "0"} {
		s.set(t, name, value)
	}
	s.run(t, "ipvsadm --set 800 90 200")
	want := s.settings(t)
	world := snapshotOf(stagetest.Port(v1.IPv4Protocol, 0, 2))
	s.Apply(t, world)
	check := func(when string) {
		t.Helper()
		if diff := cmp.Diff(want, s.settings(t)); diff != "" {
			t.Errorf("settings %s (-want +got):\n%s", when, diff)
		}
	}
	for _, name := range []string{"conntrack", "expire_nodest_conn", "expire_quiescent_template", "ip_forward"} {
		want[name] = "1"
	}
	check("without options")
	s.Options = Options{StrictARP: true, TCPTimeout: 100 * time.Second, UDPTimeout: 50 * time.Second}
	s.adopts(t, world)
	want["arp_ignore"], want["arp_announce"] = "1", "2"
	want["timeouts"] = strings.NewReplacer("800", "100", "200", "50").Replace(want["timeouts"])
	check("with options")
	s.set(t, "vs/expire_quiescent_template", "0") // repaired by the next Apply that knows nothing
	s.adopts(t, world)
	check("after a restart")
	testenv.NoError(t, s.backend(t).Cleanup(t.Context()))
	check("after Cleanup")
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

// Where /proc/sys is read-only, Apply names the setting that it needs, and succeeds once another program has written it.
func TestSettingsNotWritten(t *testing.T) {
	s := newStage(t, Options{})
	s.Apply(t, snapshotOf())
	s.set(t, "ip_forward", "0")
	writable := readOnly(t)
	s.restart(t)
	if err := s.Backend.Apply(t.Context(), proxy.Snapshot{}, snapshotOf()); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), settingForward) {
		t.Errorf("Apply with a read-only /proc/sys: got error %v, want %v for %s", err, unix.EROFS, settingForward)
	}
	writable()
	s.set(t, "ip_forward", "1") // the operator
	readOnly(t)
	s.Apply(t, snapshotOf())
}
