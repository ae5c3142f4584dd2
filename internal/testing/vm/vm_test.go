package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestVirtualMachine runs a shell on another kernel: it has the files, the environment and the
// folder of this process, and what it writes stays there. Reading the clock is cheap.
func TestVirtualMachine(t *testing.T) {
	for _, program := range []string{"apt-get", "busybox", "depmod", "dpkg", "qemu-system-x86_64"} {
		if _, err := exec.LookPath(program); err != nil {
			testenv.CannotRun(t, "needs the program "+program)
		}
	}
	cache, err := os.UserCacheDir()
	testenv.NoError(t, err)
	k, err := fetch(t.Context(), filepath.Join(cache, "vipkit", "kernels"), "6.1")
	testenv.NoError(t, err)
	folder := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(folder, "in"), []byte("from the host"), 0o644))
	var out bytes.Buffer
	environment, err := exported(t.Context(), []string{"PATH=" + os.Getenv("PATH"), "ODD=it's $HOME\n", "BASH_FUNC_x%%=() { :; }"})
	testenv.NoError(t, err)
	m := machine{kernel: k, out: &out}
	status, err := m.run(t.Context(), job{
		command:     []string{"/bin/sh", "-c", "uname -r; cat /sys/devices/system/clocksource/clocksource0/current_clocksource; test -d /sys/module/ip_vs && cat in; echo; printf %s \"$ODD\"; echo x >out; exit 7"},
		folder:      folder,
		environment: environment,
		modules:     []string{"ip_vs"},
	})
	testenv.NoError(t, err)
	if want := k.release + "\ntsc\nfrom the host\nit's $HOME\n"; out.String() != want || status != 7 {
		t.Errorf("output %q and status %d, want %q and 7", out.String(), status, want)
	}
	if _, err := m.run(t.Context(), job{command: []string{"/bin/true"}, folder: folder, modules: []string{"none"}}); err == nil || !strings.Contains(err.Error(), "cannot load module none") {
		t.Errorf("a module that does not exist: got error %v, want one that names it", err)
	}
	if _, err := os.Stat(filepath.Join(folder, "out")); !os.IsNotExist(err) {
		t.Errorf("file written in the virtual machine: got error %v on the host, want that it does not exist", err)
	}
}

func TestRelease(t *testing.T) {
	for _, c := range []struct{ description, want string }{
		{"Package: linux-image-amd64\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)\n", "6.1.0-56-amd64"},
		{"Depends: kmod, linux-image-6.12.117+deb12-amd64\nDescription: x\n", "6.12.117+deb12-amd64"},
		{"Depends: kmod\n", ""},
		{"", ""},
	} {
		got, err := releaseIn(c.description)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: got %q and error %v, want %q", c.description, got, err, c.want)
		}
	}
}

// TestErrors names what is wrong before anything is downloaded or started.
func TestErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "no program is given"},
		{[]string{"-kernel", "5.4", "/bin/true"}, "unknown version, want 6.1 or 6.12"},
	} {
		if _, err := run(context.Background(), c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got error %v, want one with %q", c.args, err, c.want)
		}
	}
}
