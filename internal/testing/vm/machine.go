package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// initScript is the first process.
//
//go:embed init.sh
var initScript []byte

// job is what runs in the virtual machine.
type job struct {
	command     []string
	folder      string
	environment string   // as a shell exports it
	modules     []string // of the kernel, to load first
}

// script runs the job with its output on the second serial line, and reports its status on
// the third one. Lines are passed as they are: a terminal would add carriage returns.
func (j job) script() string {
	var b strings.Builder
	b.WriteString(j.environment + "b=/bin/busybox\nip link set lo up\nfor line in 1 2; do $b stty raw -echo -F /dev/ttyS$line; done\n")
	for _, module := range j.modules {
		// Without the status of a job, run returns the console as its error.
		fmt.Fprintf(&b, "modprobe %s || { echo 'cannot load module' %[1]s >/dev/console; $b poweroff -f; }\n", quote(module))
	}
	// In memory the program starts quickly, as often as it starts itself.
	fmt.Fprintf(&b, "mkdir /run/vm\ncp %s /run/vm/\n", quote(j.command[0]))
	fmt.Fprintf(&b, "cd %s\n", quote(j.folder))
	b.WriteString(quote("/run/vm/" + filepath.Base(j.command[0])))
	for _, argument := range j.command[1:] {
		b.WriteString(" " + quote(argument))
	}
	b.WriteString(" >/dev/ttyS1 2>&1 </dev/null\necho $? >/dev/ttyS2\n$b sync\n$b poweroff -f\n")
	return b.String()
}

// exported returns the commands of a shell that export variables, except those whose names it does not take.
func exported(ctx context.Context, environment []string) (string, error) {
	c := exec.CommandContext(ctx, "sh", "-c", "export -p")
	c.Env = environment
	text, err := c.Output()
	return string(text), err
}

// quote makes one word of a shell out of any text.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// machine is a virtual machine.
type machine struct {
	kernel kernel
	out    io.Writer
}

// run boots the machine with a job and returns the status that the job ended with.
func (m machine) run(ctx context.Context, j job) (status int, err error) {
	folder, err := os.MkdirTemp("", "vm-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	initrd := filepath.Join(folder, "initrd")
	if err := m.pack(ctx, filepath.Join(folder, "root"), initrd, j); err != nil {
		return 0, fmt.Errorf("initial file system: %w", err)
	}
	report, console := filepath.Join(folder, "status"), filepath.Join(folder, "console")
	c := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-m", "3G", "-smp", "2", "-display", "none", "-no-reboot", "-nodefaults",
		"-kernel", m.kernel.image(), "-initrd", initrd,
		// The check of the timer fails if this machine is busy: emulated interrupts are late then.
		// QEMU keeps the TSC of all processors in step, but does not say so; without it, reading
		// the time takes 15 times as long.
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable",
		"-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
		"-serial", "file:"+console, "-serial", "stdio", "-serial", "file:"+report)
	c.Stdout, c.Stderr = m.out, os.Stderr
	if err := c.Run(); err != nil {
		return 0, fmt.Errorf("qemu-system-x86_64: %w", err)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		return 0, err
	}
	if status, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		said, _ := os.ReadFile(console) // The error that matters is the one at hand.
		return 0, fmt.Errorf("the virtual machine stopped before the program ended; its console: %s", bytes.TrimSpace(said))
	}
	return status, nil
}

// pack makes the initial file system: what it takes to reach the files of the host.
func (m machine) pack(ctx context.Context, root, to string, j job) error {
	for _, folder := range []string{"bin", "sbin", "proc", "sys", "dev", "host", "memory", "new", m.inRoot()} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			return err
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	release := fmt.Sprintf("release=%s\nmodules=%s\n", quote(m.kernel.release), quote(m.kernel.modules()))
	err = errors.Join(
		copyFile(busybox, filepath.Join(root, "bin/busybox"), 0o755),
		os.Symlink("busybox", filepath.Join(root, "bin/sh")),
		os.Symlink("/bin/busybox", filepath.Join(root, "sbin/modprobe")),
		os.WriteFile(filepath.Join(root, "init"), initScript, 0o755),
		os.WriteFile(filepath.Join(root, "release"), []byte(release), 0o644),
		os.WriteFile(filepath.Join(root, "job"), []byte(j.script()), 0o644),
		m.copyModules(ctx, root))
	if err != nil {
		return err
	}
	_, err = output(ctx, root, "busybox", "sh", "-c", `set -o pipefail; busybox find . | busybox cpio -o -H newc | busybox gzip -1 >"$0"`, to)
	return err
}

func (m machine) inRoot() string { return filepath.Join("lib/modules", m.kernel.release) }

// copyModules copies the modules by which the files of the host are reached.
func (m machine) copyModules(ctx context.Context, root string) error {
	indexes, err := filepath.Glob(filepath.Join(m.kernel.modules(), "modules.*"))
	if err != nil {
		return err
	}
	for _, file := range indexes {
		if err := copyFile(file, filepath.Join(root, m.inRoot(), filepath.Base(file)), 0o644); err != nil {
			return err
		}
	}
	needed, err := output(ctx, "", "modprobe", "-d", m.kernel.folder, "-S", m.kernel.release, "--show-depends", "-a",
		"virtio_pci", "9pnet_virtio", "9p", "overlay")
	if err != nil {
		return err
	}
	for line := range strings.Lines(needed) {
		file, ok := strings.CutPrefix(strings.TrimSpace(line), "insmod ")
		if !ok {
			continue // builtin
		}
		name, err := filepath.Rel(m.kernel.folder, strings.TrimSpace(file))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			return err
		}
		if err := copyFile(filepath.Join(m.kernel.folder, name), filepath.Join(root, name), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string, mode os.FileMode) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, mode)
}
