package xtables

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

func TestMissingPrograms(t *testing.T) {
	t.Parallel()
	at := mustNamespace(t)
	_, err := findPrograms(t.Context(), &Config{Options: Options{Flavour: "unheard-of"}}, v1.IPv6Protocol, at)
	if !errors.Is(err, proxy.ErrUnsupported) {
		t.Fatalf("findPrograms: got error %v, want %v", err, proxy.ErrUnsupported)
	}
	for _, want := range []string{"ip6tables-unheard-of-", "install the package iptables"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("findPrograms: got error %q, want it to contain %q", err, want)
		}
	}
}

// The default flavour is read from the version of the programs.
func TestDefaultFlavour(t *testing.T) {
	at := mustNamespace(t)
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	for says, want := range map[string]Flavour{
		"echo 'iptables-restore v1.8.9 (nf_tables)'": NFT, "echo 'iptables-restore v1.8.9 (legacy)'": Legacy, "echo 'iptables-restore v1.6'": Legacy, "exit 1": Default,
	} {
		for _, name := range []string{"iptables-save", "iptables-restore"} {
			testenv.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+says+"\n"), 0o700))
		}
		p, err := findPrograms(t.Context(), &Config{Options: Options{LockWait: time.Second}}, v1.IPv4Protocol, at)
		if p.flavour != want || (err != nil) != (want == Default) {
			t.Errorf("%s: got flavour %q and error %v, want %q", says, p.flavour, err, want)
		}
	}
}

// Programs are found also outside of PATH.
func TestFindPrograms(t *testing.T) {
	at := mustNamespace(t)
	t.Setenv("PATH", t.TempDir())
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		p, err := findPrograms(t.Context(), &Config{Options: Options{Flavour: Legacy, LockWait: time.Second}}, family, at)
		testenv.NoError(t, err)
		if strings.Contains(p.saver+p.restorer, "ip6") != (family == v1.IPv6Protocol) || p.family != family {
			t.Errorf("%s: got %s, %s and %s", family, p.saver, p.restorer, p.family)
		}
	}
}
