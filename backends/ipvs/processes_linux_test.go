//go:build ipvs

package ipvs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// After the first load no program is started: not by changes of Services, and, with nft, not by
// resyncs.
func TestNoProcesses(t *testing.T) {
	for _, flavour := range []Flavour{NFT, Legacy} {
		t.Run(string(flavour), func(t *testing.T) {
			s := newStage(t, Options{Flavour: flavour})
			started := logPrograms(t)
			s.restart(t) // finds the programs that are logged
			ports := []*proxy.ServicePort{localPort(1), stagetest.Port(v1.IPv4Protocol, 2, 3), stagetest.Port(v1.IPv6Protocol, 3, 2)}
			s.Apply(t, snapshotOf(ports...))
			first := started()
			if first == "" {
				t.Error("programs that the first load started: got none, want some")
			}
			for _, want := range []proxy.Snapshot{
				snapshotOf(append(ports, stagetest.Port(v1.IPv4Protocol, 4, 3))...),
				snapshotOf(localPort(1), stagetest.Port(v1.IPv4Protocol, 2, 1)),
				snapshotOf(),
				snapshotOf(ports...),
			} {
				s.Apply(t, want)
				if flavour == Legacy {
					continue // its tables have no generation: a resync lists them by programs
				}
				s.Applied = proxy.Snapshot{}
				before := s.Operations(t)
				s.Apply(t, want)
				if got := s.Operations(t) - before; got != 0 {
					t.Errorf("operations of a resync: got %d, want 0", got)
				}
			}
			if got := strings.TrimPrefix(started(), first); got != "" {
				t.Errorf("programs that later changes and resyncs started: got\n%s\nwant none", got)
			}
		})
	}
}

// logPrograms puts programs in front of those of the system that log that they were started.
// The function that it returns reads the log.
func logPrograms(t *testing.T) func() string {
	t.Helper()
	folder := t.TempDir()
	log := filepath.Join(folder, "log")
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, flavour := range []string{"", "-nft", "-legacy"} {
			for _, verb := range []string{"", "-save", "-restore"} {
				program := name + flavour + verb
				path, err := exec.LookPath(program)
				testenv.NoError(t, err)
				script := fmt.Sprintf("#!/bin/sh\necho %s >>%s\nexec %s \"$@\"\n", program, log, path)
				testenv.NoError(t, os.WriteFile(filepath.Join(folder, program), []byte(script), 0o755))
			}
		}
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	return func() string {
		text, err := os.ReadFile(log)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(text)
	}
}
