package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// kernel is an unpacked package of a kernel.
type kernel struct {
	release string // as uname -r says
	folder  string // with boot/vmlinuz-RELEASE and lib/modules/RELEASE
}

func (k kernel) image() string   { return filepath.Join(k.folder, "boot", "vmlinuz-"+k.release) }
func (k kernel) modules() string { return filepath.Join(k.folder, "lib", "modules", k.release) }

// metaPackage is Debian's package that depends on the newest kernel of a version.
func metaPackage(version string) (string, error) {
	switch version {
	case "6.1":
		return "linux-image-amd64", nil
	case "6.12":
		return "linux-image-6.12-amd64", nil
	}
	return "", errors.New("unknown version, want 6.1 or 6.12")
}

// fetch downloads and unpacks a kernel, unless the cache has it.
func fetch(ctx context.Context, cache, version string) (kernel, error) {
	meta, err := metaPackage(version)
	if err != nil {
		return kernel{}, err
	}
	description, err := output(ctx, "", "apt-cache", "show", "--no-all-versions", meta)
	if err != nil {
		return kernel{}, err
	}
	release, err := releaseIn(description)
	if err != nil {
		return kernel{}, fmt.Errorf("package %s: %w", meta, err)
	}
	k := kernel{release: release, folder: filepath.Join(cache, release)}
	if _, err := os.Stat(k.folder); err == nil {
		return k, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return kernel{}, err
	}
	// It gets its name when it is complete.
	temporary, err := os.MkdirTemp(cache, "unpacking-")
	if err != nil {
		return kernel{}, err
	}
	defer func() { _ = os.RemoveAll(temporary) }() // What remains does no harm.
	fmt.Fprintf(os.Stderr, "vm: downloading linux-image-%s\n", release)
	if err := unpack(ctx, temporary, release); err != nil {
		return kernel{}, err
	}
	if err := os.Rename(filepath.Join(temporary, "root"), k.folder); err != nil && !errors.Is(err, os.ErrExist) {
		return kernel{}, err
	}
	return k, nil
}

// unpack downloads the package of a kernel and unpacks it into the folder root.
func unpack(ctx context.Context, folder, release string) error {
	if _, err := output(ctx, folder, "apt-get", "download", "linux-image-"+release); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(folder, "*.deb"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("apt-get download left %d packages, want 1", len(found))
	}
	root := filepath.Join(folder, "root")
	if _, err := output(ctx, folder, "dpkg", "-x", found[0], root); err != nil {
		return err
	}
	_, err = output(ctx, folder, "depmod", "-b", root, release)
	return err
}

// releaseIn returns the release that a description of a meta package depends on.
func releaseIn(description string) (string, error) {
	found := regexp.MustCompile(`(?m)^Depends:.*[ ,]linux-image-([^ ,\n]+)`).FindStringSubmatch(description)
	if found == nil {
		return "", errors.New("it depends on no kernel")
	}
	return found[1], nil
}

// output runs a program of the system and returns what it printed.
func output(ctx context.Context, folder, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = folder
	c.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "LC_ALL=C")
	text, err := c.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(text), nil
}
