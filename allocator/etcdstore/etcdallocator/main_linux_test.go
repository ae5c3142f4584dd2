package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vipkit/vipkit/examples/allocator/allocatorcli"
	"github.com/vipkit/vipkit/internal/servertest"
	"github.com/vipkit/vipkit/internal/testenv"
)

// step is a command, and a part of its output.
type step struct {
	command, want string
	fails         bool
}

// call runs the program once.
func call(t *testing.T, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e strings.Builder
	status = program().Run(t.Context(), args, allocatorcli.Streams{In: strings.NewReader(""), Out: &o, Err: &e})
	return status, o.String(), e.String()
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testenv.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// TestCommands runs all commands, valid and invalid ones.
func TestCommands(t *testing.T) {
	etcd := servertest.StartEtcd(t)
	cluster := write(t, "ports.json", `{"kind":"RangeAllocation","apiVersion":"v1","range":"30000-32767","data":"AQM="}`)
	part := write(t, "part.json", `{"kind":"RangeAllocation","apiVersion":"v1","range":"30000-30015","data":"AQc="}`)
	for _, c := range []step{
		{"show", "there is no allocation map at /vipkit/allocator/maps/10.96.0.0/29", true},
		{"show", "The commands repair, import and create make one.", true},
		{"import " + part, "there is no allocation map at /vipkit/allocator/maps/10.96.0.0/29", true},
		{"import " + cluster, "3 keys of 30000-32767: 3 imported, 0 already taken", false},
		{"show", "there is no allocation map at /vipkit/allocator/maps/10.96.0.0/29", true},
		{"import " + cluster, "there is no allocation map at /vipkit/allocator/maps/10.96.0.0/29", true},
		{"create", "", false},
		{"import " + cluster, "3 keys of 30000-32767: 0 imported, 3 already taken", false},
		{"import " + part, "4 keys of 30000-30015: 1 imported, 3 already taken", false},
		{"release imported 30002", "", false},
		{"allocate services/default/web 10.96.0.3 30500", "10.96.0.3\n30500\n", false},
		{"allocate you 10.96.0.3", `10.96.0.3 is already allocated to "services/default/web"`, true},
		{"allocate you 30000", `30000 is already allocated to "imported"`, true},
		{"allocate you ipv4 fd00::10", "fd00::10\n", false},
		{"release you 10.96.0.3", `10.96.0.3 is held by "services/default/web"`, true},
		{"release imported 30001 30008", "", false},
		{"show", "10.96.0.0/29: 6 keys, 2 taken, 4 free\n", false},
		{"show", "fd00::/64: 65535 keys, 1 taken, 65534 free\n", false},
		{"show", "30000-32767: 2768 keys, 2 taken, 2766 free\n", false},
		{"show", "30000                imported, bound\n30500                services/default/web, bound\n", false},
		{"allocate \x1b[2J 30501", "30501", false},
		{"show", `30501                \x1b[2J, bound`, false},
		{"fly", "unknown command \"fly\"; the commands are allocate, try, release, show, create, repair, import", true},
	} {
		status, out, errs := call(t, append([]string{"-store", "etcd:" + etcd.URL, "-range", "10.96.0.0/29,fd00::/64,30000-32767"}, strings.Fields(c.command)...)...)
		if output := out + errs; (status != 0) != c.fails || !strings.Contains(output, c.want) {
			t.Errorf("%s: got status %d and\n%s\nwant an error: %t, and %q", c.command, status, output, c.fails, c.want)
		}
	}
}

// TestSameAsInAFile checks that every command has the same output with etcd as with a file.
func TestSameAsInAFile(t *testing.T) {
	etcd := servertest.StartEtcd(t)
	owners := write(t, "owners", "10.96.0.1 kubernetes\n10.96.0.10 kube-dns\nfd00::a kube-dns\n30080 gate\n")
	fewer := write(t, "fewer", "10.96.0.1 kubernetes\n10.96.0.1 copy\n30080 window\n30090 gate\n10.96.0.400 typo\n")
	empty := write(t, "empty", "")
	ports := write(t, "ports.json", `{"kind":"RangeAllocation","apiVersion":"v1","range":"30000-32767","data":"AQM="}`)
	// A file has one map, etcd one for each range, and errors name the missing one.
	whichMap := regexp.MustCompile(`(?s)reading the store: .*(\nThe commands)`)
	file := filepath.Join(t.TempDir(), "map")
	for _, command := range []string{
		"allocate web",
		"repair " + empty,
		"repair " + owners,
		"repair " + owners,
		"show",
		"try web 10.96.0.2 30081 fd00::b",
		"allocate web 10.96.0.2 30081 fd00::b",
		"try other 10.96.0.2",
		"allocate other 10.96.0.3 30081",
		"allocate other 10.97.0.1",
		"allocate many port*0",
		"allocate many ipv4*20",
		"release other 30081",
		"release web 30081 10.96.0.2",
		"import " + ports,
		"import " + ports,
		"repair " + fewer,
		"show",
		"repair -force " + empty,
		"show",
		"create",
		"show all",
	} {
		ranges := []string{"-range", "10.96.0.0/28,fd00::/112,30000-32767"}
		words := strings.Fields(command)
		var output [2]string
		for i, store := range []string{"file:" + file, "etcd:" + etcd.URL} {
			status, out, errs := call(t, append(append(ranges, "-store", store), words...)...)
			if output[i] = out + whichMap.ReplaceAllString(errs, "reading the store$1"); status != 0 {
				output[i] += "failed\n"
			}
		}
		if diff := cmp.Diff(output[0], output[1]); diff != "" {
			t.Errorf("%s (-file +etcd):\n%s", command, diff)
		}
	}
}

// TestManyPorts allocates several ports at once: all or none.
func TestManyPorts(t *testing.T) {
	etcd := servertest.StartEtcd(t)
	args := []string{"-store", "etcd:" + etcd.URL, "-prefix", "/other", "-range", "30000-30099"}
	if status, _, errs := call(t, append(args, "create")...); status != 0 {
		t.Fatalf("create: %s", errs)
	}
	status, out, errs := call(t, append(args, "allocate", "web", "port*3")...)
	if status != 0 || strings.Count(out, "\n") != 3 {
		t.Errorf("three ports: got status %d, %q, %q, want three lines", status, out, errs)
	}
	status, out, errs = call(t, append(args, "allocate", "many", "port*98")...)
	if status != 1 || out != "" || !strings.Contains(errs, "range 30000-30099 has fewer than 98 free keys") {
		t.Errorf("more than are free: got status %d, %q, %q, want 1 and an error", status, out, errs)
	}
	status, out, _ = call(t, append(args, "show")...)
	if status != 0 || !strings.Contains(out, "100 keys, 3 taken, 97 free") || !strings.Contains(out, "upper band, 30016 to 30099") {
		t.Errorf("show: got status %d, %q, want 3 keys taken", status, out)
	}
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-range nonsense show":             "neither a prefix nor a range of ports",
		"-range 10.96.0.0/24 -store disk":  "want etcd, etcd:URL,..., file:PATH or memory",
		"-range 10.96.0.0/24 -store etcd:": "want etcd, etcd:URL,..., file:PATH or memory",
		"show":                             "-range is required",
	} {
		if status, _, errs := call(t, strings.Fields(args)...); status != 2 || !strings.Contains(errs, want) {
			t.Errorf("%s: got status %d, %q, want 2 and %q", args, status, errs, want)
		}
	}
	if status, _, errs := call(t, "-range", "10.96.0.0/16,10.96.0.0/24", "show"); status != 1 || !strings.Contains(errs, "overlap") {
		t.Errorf("ranges that overlap: got status %d, %q, want 1 and an error", status, errs)
	}
}
