// Command image builds the container image of examples/kubeproxy, without a container runtime and
// without a registry: the static program, on nothing, for amd64 and arm64, as an OCI layout in a
// folder that it replaces.
//
//	go -C internal/peer run ./image -output /tmp/kubeproxy-image
//
// The image has no other programs, so the agent runs in mode nftables. The same commit, built with
// the same version of Go, has the same digest, which the command prints.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// entrypoint is the path of the program in the image, as in deploy/Containerfile.
const entrypoint = "/usr/local/bin/kubeproxy"

func main() {
	source := flag.String("source", "../..", "the folder of the repository")
	output := flag.String("output", "", "the folder to write; an OCI layout there is replaced")
	architectures := flag.String("architectures", "amd64,arm64", "architectures of the image, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	digest, err := build(ctx, *source, *output, strings.Split(*architectures, ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

// build writes the image, and returns the digest of its index.
func build(ctx context.Context, source, output string, architectures []string) (digest v1.Hash, err error) {
	if err := removeFormer(output); err != nil {
		return digest, err
	}
	folder, err := os.MkdirTemp("", "image-")
	if err != nil {
		return digest, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range architectures {
		program := filepath.Join(folder, architecture)
		if err := compile(ctx, source, architecture, program); err != nil {
			return digest, err
		}
		platform := v1.Platform{OS: "linux", Architecture: architecture}
		image, err := imageOf(program, platform)
		if err != nil {
			return digest, fmt.Errorf("image for %s: %w", architecture, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	all, err := layout.Write(output, empty.Index)
	if err != nil {
		return digest, err
	}
	if err := all.AppendIndex(index); err != nil {
		return digest, err
	}
	return index.Digest()
}

// removeFormer removes an image that an earlier run wrote, and nothing else.
func removeFormer(output string) error {
	entries, err := os.ReadDir(output)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(output, "oci-layout")); err != nil {
		return fmt.Errorf("%s has files, and is no OCI layout: %w", output, err)
	}
	return os.RemoveAll(output)
}

// compile builds a static program, in which no path of this machine is.
func compile(ctx context.Context, source, architecture, program string) error {
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", program, ".")
	c.Dir = filepath.Join(source, "examples", "kubeproxy")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture, "GOAMD64=v1", "GOARM64=v8.0", "GOWORK=")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("building for %s: %w\n%s", architecture, err, out)
	}
	return nil
}

// imageOf returns an image with the program alone. Its times are the time of the commit, or the first
// one that there is, so that they do not depend on when it is built.
func imageOf(program string, platform v1.Platform) (v1.Image, error) {
	version, when, err := origin(program)
	if err != nil {
		return nil, err
	}
	packed, err := pack(program, when)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{
		Created: v1.Time{Time: when}, CreatedBy: "internal/peer/image", Comment: "the static program",
	}})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = platform.OS, platform.Architecture, v1.Time{Time: when}
	file.Config = v1.Config{
		Entrypoint: []string{entrypoint},
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/vipkit/vipkit",
			"org.opencontainers.image.version":  version,
		},
	}
	return mutate.ConfigFile(image, file)
}

// origin returns the version of a program, and the time of its commit.
func origin(program string) (version string, when time.Time, err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return "", when, err
	}
	when = time.Unix(0, 0).UTC()
	for _, s := range info.Settings {
		if s.Key == "vcs.time" {
			if when, err = time.Parse(time.RFC3339, s.Value); err != nil {
				return "", when, err
			}
		}
	}
	return info.Main.Version, when, nil
}

// pack returns an archive of the program and its folders.
func pack(program string, when time.Time) ([]byte, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	w := tar.NewWriter(&all)
	for _, folder := range []string{"usr/", "usr/local/", "usr/local/bin/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder, Mode: 0o755, ModTime: when, Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
	}
	err = w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: entrypoint[1:], Mode: 0o755, Size: int64(len(content)), ModTime: when, Format: tar.FormatPAX,
	})
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return all.Bytes(), nil
}
