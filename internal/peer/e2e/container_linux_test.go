package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// containerCommand is the first argument of a process that becomes a container.
const containerCommand = "container"

// container is what a container may do, as its security context in the API server says.
type container struct {
	Root string
	// Privileged containers have all capabilities, and may write kernel parameters.
	Privileged   bool
	Capabilities []string
	// ReadOnly is the root file system; NoNewPrivileges is what allowPrivilegeEscalation: false means.
	ReadOnly, NoNewPrivileges bool
	// Binds are paths in the container of files of the node.
	Binds   map[string]string
	Program []string
}

// capabilities are those that manifests name, and others that a test would notice.
func capabilities() map[string]uintptr {
	return map[string]uintptr{"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "SYS_ADMIN": unix.CAP_SYS_ADMIN}
}

// startContainer runs a container of the pod in the node's network, as its manifest says, in namespaces
// of its own for files and processes.
func (c *cluster) startContainer(n *node, root string, pod *v1.PodSpec, spec *v1.Container) {
	c.t.Helper()
	x := container{Root: root, Binds: map[string]string{}, Program: []string{"/usr/local/bin/kubeproxy"}}
	for _, arg := range spec.Args {
		x.Program = append(x.Program, strings.ReplaceAll(arg, "$(NODE_NAME)", n.name))
	}
	if err := x.confine(spec.SecurityContext); err != nil {
		c.t.Fatalf("container %s: %v", spec.Name, err)
	}
	for _, m := range spec.VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v v1.Volume) bool { return v.Name == m.Name })
		if pod.Volumes[i].HostPath == nil {
			continue // The files are there already.
		}
		file := filepath.Join(n.folder, m.Name)
		for _, path := range []string{file, filepath.Join(root, m.MountPath)} {
			testenv.NoError(c.t, os.MkdirAll(filepath.Dir(path), 0o700))
			testenv.NoError(c.t, os.WriteFile(path, nil, 0o600))
		}
		x.Binds[m.MountPath] = file
	}
	text, err := json.Marshal(x)
	testenv.NoError(c.t, err)
	program, err := os.Executable()
	testenv.NoError(c.t, err)
	n.start("unshare", "--mount", "--pid", "--fork", "--kill-child", program, containerCommand, string(text))
}

// confine takes what the manifest permits a container.
func (x *container) confine(s *v1.SecurityContext) error {
	if s.Privileged != nil && *s.Privileged {
		x.Privileged = true
		return nil
	}
	if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []v1.Capability{"ALL"}) {
		return fmt.Errorf("got capabilities %+v, want it to drop ALL", s.Capabilities)
	}
	for _, name := range s.Capabilities.Add {
		x.Capabilities = append(x.Capabilities, string(name))
	}
	x.ReadOnly = s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem
	x.NoNewPrivileges = s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation
	return nil
}

// becomeContainer makes this process the program of a container; it returns an error only.
func becomeContainer(text string) error {
	runtime.LockOSThread() // which the kernel gives the capabilities of
	var x container
	if err := json.Unmarshal([]byte(text), &x); err != nil {
		return err
	}
	if err := x.mount(); err != nil {
		return fmt.Errorf("mounting: %w", err)
	}
	if err := syscall.Chroot(x.Root); err != nil {
		return err
	}
	if err := syscall.Chdir("/"); err != nil {
		return err
	}
	if err := x.drop(); err != nil {
		return fmt.Errorf("dropping capabilities: %w", err)
	}
	return syscall.Exec(x.Program[0], x.Program, []string{"PATH=/usr/local/bin"})
}

// mount mounts what a container runtime mounts. The mount namespace is the namespace of the container.
func (x *container) mount() error {
	type mount struct {
		source, target, kind string
		flags                uintptr
	}
	const confined = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	at := func(path string) string { return filepath.Join(x.Root, path) }
	all := []mount{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{x.Root, x.Root, "", unix.MS_BIND},
		{"proc", at("proc"), "proc", confined},
		{"sysfs", at("sys"), "sysfs", confined | unix.MS_RDONLY},
	}
	for path, file := range x.Binds {
		all = append(all, mount{file, at(path), "", unix.MS_BIND})
	}
	if !x.Privileged {
		all = append(all, mount{at("proc/sys"), at("proc/sys"), "", unix.MS_BIND}, mount{"", at("proc/sys"), "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | confined})
	}
	if x.ReadOnly {
		var is unix.Statfs_t
		if err := unix.Statfs(x.Root, &is); err != nil {
			return err
		}
		kept := uintptr(is.Flags) & confined // which a user namespace cannot clear
		all = append(all, mount{"", x.Root, "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | kept})
	}
	for _, m := range all {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("%s: %w", m.target, err)
		}
	}
	return nil
}

// drop drops all capabilities that the container lacks, also capabilities that a program would get.
func (x *container) drop() error {
	if x.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	if x.Privileged {
		return nil
	}
	keep := []uintptr{}
	for _, name := range x.Capabilities {
		capability, ok := capabilities()[name]
		if !ok {
			return fmt.Errorf("%s is unknown to this test", name)
		}
		keep = append(keep, capability)
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(keep, c) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("%d: %w", c, err)
		}
	}
	return nil
}

// wantConfined checks in /proc that a process has no more than the container of a manifest may have.
func wantConfined(t *testing.T, n *node, spec *v1.Container) {
	t.Helper()
	pid, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", n.agent.ID()))
	testenv.NoError(t, err)
	folder := filepath.Join("/proc", strings.TrimSpace(string(pid)))
	status, err := os.ReadFile(filepath.Join(folder, "status"))
	testenv.NoError(t, err)
	var want uint64
	for _, name := range spec.SecurityContext.Capabilities.Add {
		want |= 1 << capabilities()[string(name)]
	}
	hex := strconv.FormatUint(want, 16)
	for _, name := range []string{"CapPrm", "CapEff", "CapBnd"} {
		if line := fmt.Sprintf("%s:\t%016s\n", name, hex); !strings.Contains(string(status), line) {
			t.Errorf("%s: got\n%s\nwant %s", spec.Name, status, line)
		}
	}
	if !strings.Contains(string(status), "NoNewPrivs:\t1\n") {
		t.Errorf("%s: got\n%s\nwant no new privileges", spec.Name, status)
	}
	mounts, err := os.ReadFile(filepath.Join(folder, "mountinfo"))
	testenv.NoError(t, err)
	for _, path := range []string{"/", "/proc/sys"} {
		const point, options = 4, 5 // the fields of a line
		isReadOnly := false
		for line := range strings.Lines(string(mounts)) {
			if f := strings.Fields(line); len(f) > options && f[point] == path {
				isReadOnly = slices.Contains(strings.Split(f[options], ","), "ro")
			}
		}
		if !isReadOnly {
			t.Errorf("%s: got mounts\n%s\nwant %s to be read-only", spec.Name, mounts, path)
		}
	}
}
