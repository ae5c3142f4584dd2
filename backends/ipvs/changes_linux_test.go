package ipvs

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/ipvs"
)

// The alias of the device is no instruction to write other files or values: who has
// CAP_NET_ADMIN alone may write it.
func TestForeignAlias(t *testing.T) {
	for _, field := range []string{
		"../../../kernel/core_pattern=core>core", "=1>2", "tcp=>900", "tcp=900>", "udp=1", "conntrack=0>1;", "ip_forward=0>-1",
		"somaxconn=0>4096", "conntrack=../0>1",
	} {
		if c := parseChanges("tcpfin=120>60 " + field); len(c) != 1 || c[settingTCPFin] != (changed{"120", "60"}) {
			t.Errorf("alias with %q: got %v, want tcpfin alone", field, c)
		}
	}
	all := strings.Join(settingNames(), "=0>1 ") + "=0>1"
	if c := parseChanges(all); len(c) != len(settingNames()) {
		t.Errorf("alias %q: got %v, want all settings", all, c)
	}
}

// Only a refusal that says so means that the kernel has no scheduler.
func TestProbed(t *testing.T) {
	second := Schedulers()[1]
	for what, c := range map[string]struct {
		failed  []ipvs.Failure
		missing []string
		isError bool
	}{
		"all":                     {},
		"one is missing":          {failed: []ipvs.Failure{{Index: 2, Err: unix.ENOENT}, {Index: 3, Err: unix.ESRCH}}, missing: []string{second}},
		"another program removes": {failed: []ipvs.Failure{{Index: 3, Err: unix.ESRCH}}},
		"no memory":               {failed: []ipvs.Failure{{Index: 2, Err: unix.ENOMEM}, {Index: 3, Err: unix.ESRCH}}, isError: true},
		"no removal":              {failed: []ipvs.Failure{{Index: 3, Err: unix.ENOMEM}}, isError: true},
	} {
		got, err := probed(c.failed)
		if (err != nil) != c.isError {
			t.Errorf("%s: got error %v", what, err)
		}
		want := slices.DeleteFunc(Schedulers(), func(name string) bool { return slices.Contains(c.missing, name) })
		if !c.isError && !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
}
