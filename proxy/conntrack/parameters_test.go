package conntrack

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// usual are the defaults of kube-proxy.
func usual() Parameters {
	return Parameters{MaxPerCore: 32 << 10, Min: 128 << 10, TCPEstablishedTimeout: 24 * time.Hour, TCPCloseWaitTimeout: time.Hour}
}

func TestParameters(t *testing.T) {
	const maximum, hashes = "proc/sys/net/netfilter/nf_conntrack_max", "sys/module/nf_conntrack/parameters/hashsize"
	timeout := func(name string) string { return "proc/sys/net/netfilter/nf_conntrack_" + name }
	for name, tc := range map[string]struct {
		config     Parameters
		processors int
		before     map[string]string
		want       map[string]string
	}{
		"defaults": {
			usual(), 4,
			map[string]string{maximum: "65536\n", hashes: "16384\n", timeout("tcp_timeout_established"): "432000", timeout("tcp_timeout_close_wait"): "3600\n"},
			map[string]string{maximum: "131072", hashes: "32768", timeout("tcp_timeout_established"): "86400", timeout("tcp_timeout_close_wait"): "3600\n"},
		},
		"many processors": {
			Parameters{MaxPerCore: 32 << 10}, 512,
			map[string]string{maximum: "1", hashes: "999999999\n"}, map[string]string{maximum: "1048576", hashes: "999999999\n"},
		},
		"minimum above the bound": {
			Parameters{MaxPerCore: 1, Min: 2 << 20}, 512, map[string]string{maximum: "1", hashes: "1"}, map[string]string{maximum: "2097152", hashes: "524288"},
		},
		"the rest": {
			Parameters{TCPBeLiberal: true, UDPTimeout: 10 * time.Second, UDPStreamTimeout: time.Minute}, 1,
			map[string]string{timeout("tcp_be_liberal"): "0", timeout("udp_timeout"): "30", timeout("udp_timeout_stream"): "120"},
			map[string]string{timeout("tcp_be_liberal"): "1", timeout("udp_timeout"): "10", timeout("udp_timeout_stream"): "60"},
		},
		"nothing": {Parameters{Min: 5}, 1, map[string]string{}, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tc.before {
				path := filepath.Join(root, name)
				testenv.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				testenv.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
			testenv.NoError(t, tc.config.set(root, tc.processors, loadNothing))
			got := map[string]string{}
			err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				text, err := os.ReadFile(filepath.Join(root, path))
				got[path] = string(text)
				return err
			})
			testenv.NoError(t, err)
			testenv.Same(t, tc.want, got, "files")
		})
	}
}

func loadNothing() error { return nil }

// Where the module of connection tracking is not loaded, Set loads it, once.
func TestParametersLoadTheirModule(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	c, loads := Parameters{TCPBeLiberal: true}, 0
	load := func() error {
		loads++
		folder := filepath.Join(root, "proc/sys/net/netfilter")
		return errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(filepath.Join(folder, "nf_conntrack_tcp_be_liberal"), []byte("0\n"), 0o600),
			os.WriteFile(filepath.Join(folder, "nf_conntrack_max"), []byte("65536\n"), 0o600))
	}
	for range 2 {
		testenv.NoError(t, c.set(root, 1, load))
	}
	if got, err := os.ReadFile(filepath.Join(root, "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")); string(got) != "1" || err != nil || loads != 1 {
		t.Errorf("got parameter %q (error %v) and %d loads, want 1 and one load", got, err, loads)
	}
	if err := (Parameters{}).set(t.TempDir(), 1, load); err != nil || loads != 1 {
		t.Errorf("nothing to set: got error %v and %d loads, want none and still one", err, loads)
	}
}

// The error names all parameters that could not be set.
func TestParametersThatCannotBeSet(t *testing.T) {
	t.Parallel()
	err := usual().set(filepath.Join(t.TempDir(), "none"), 1, func() error { return errors.New("no module") })
	for _, part := range []string{"no module", "nf_conntrack_max", "hashsize", "tcp_timeout_established", "tcp_timeout_close_wait"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want one that names %s", err, part)
		}
	}
}
