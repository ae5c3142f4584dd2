package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/servertest"
)

// TestCommands goes through what a person may type.
func TestCommands(t *testing.T) {
	etcd := servertest.StartEtcd(t)
	cluster := filepath.Join(t.TempDir(), "ports.json")
	object := `{"kind":"RangeAllocation","apiVersion":"v1","range":"30000-32767","data":"AQM="}`
	if err := os.WriteFile(cluster, []byte(object), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command, want string // a part of the output, or of the error
		fails         bool
	}{
		{"show", "there is no allocation map at /vipkit/allocator/maps/10.96.0.0/29", true},
		{"import " + cluster, "", false},
		{"import " + cluster, "there is one already", true},
		{"create", "", false},
		{"allocate services/default/web 10.96.0.3 30500", "10.96.0.3\n30500\n", false},
		{"allocate you 10.96.0.3", `10.96.0.3 is already allocated to "services/default/web"`, true},
		{"allocate you 30000", `30000 is already allocated to "imported"`, true},
		{"allocate you ipv4 fd00::10", "fd00::10\n", false},
		{"release you 10.96.0.3", `10.96.0.3 is held by "services/default/web"`, true},
		{"release imported 30001 30008", "", false},
		{"show", "10.96.0.0/29: 6 keys, 2 taken, 4 free\nfd00::/64: 65535 keys, 1 taken, 65534 free\n30000-32767: 2768 keys, 2 taken, 2766 free\n", false},
		{"show", "30000                imported, bound\n30500                services/default/web, bound\n", false},
		{"allocate \x1b[2J 30501", "30501", false},
		{"show", `30501                \x1b[2J, bound`, false},
		{"allocate me", "not the arguments that it takes", true},
	} {
		var out strings.Builder
		args := []string{"-endpoints", etcd.URL, "-range", "10.96.0.0/29,fd00::/64,30000-32767"}
		err := run(t.Context(), append(args, strings.Fields(c.command)...), &out)
		said := out.String()
		if err != nil {
			said += err.Error()
		}
		if (err != nil) != c.fails || !strings.Contains(said, c.want) {
			t.Errorf("%s: got error %v and\n%s\nwant an error: %t, and %q", c.command, err, said, c.fails, c.want)
		}
	}
	if err := run(t.Context(), []string{"-range", "nonsense", "show"}, &strings.Builder{}); err == nil {
		t.Error("a range that is none has no error")
	}
}
