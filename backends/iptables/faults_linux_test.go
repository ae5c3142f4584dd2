package iptables

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// stubRestore installs a stub of iptables-restore for IPv4, which runs a shell script; "$real"
// is the program itself. It returns a file with a line for each program that was started.
func stubRestore(t *testing.T, s *stage, script string) (started string) {
	t.Helper()
	return stubProgram(t, s, "restore", script)
}

// stubProgram does the same for iptables-save or iptables-restore, or for both if program is
// empty.
func stubProgram(t *testing.T, s *stage, program, script string) (started string) {
	t.Helper()
	folder := t.TempDir()
	started = filepath.Join(folder, "started")
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"save", "restore"} {
			file := fmt.Sprintf("%s-%s-%s", name, s.Options.Flavour, what)
			real, err := xtables.LookUp(file)
			testenv.NoError(t, err)
			text := "#!/bin/sh\nreal=" + real + "\necho " + file + " >>" + started + "\n"
			if name == "iptables" && (what == program || program == "") {
				text += script + "\n"
			}
			text += "exec $real \"$@\"\n"
			testenv.NoError(t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o700))
		}
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	s.Restart(t)
	return started
}

func startedSince(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	testenv.NoError(t, os.WriteFile(file, nil, 0o600))
	return strings.Fields(string(text))
}

// A change starts one program, and an unchanged snapshot none. Listing the rules starts one
// program, in the legacy flavour one for each existing table.
func TestProcesses(t *testing.T) {
	eachFlavourInTurn(t, func(t *testing.T, s *stage) {
		file := stubRestore(t, s, "")
		name := func(stem, what string) string { return fmt.Sprintf("%s-%s-%s", stem, s.Options.Flavour, what) }
		looks := func(stem string) []string { return slices.Repeat([]string{name(stem, "save")}, 2) }
		all := append(newPorts(v1.IPv4Protocol, 3, 2), newPorts(v1.IPv6Protocol, 3, 2)...)
		first := proxy.NewSnapshot(stagetest.Node(), all...)
		changed := moved(all[1], 1000)
		second := first.Revert(proxy.NewSnapshot(stagetest.Node(), changed), changed.Name)
		load := []string{name("iptables", "restore"), name("ip6tables", "restore")}
		if s.Options.Flavour == NFT {
			looks = func(stem string) []string { return []string{name(stem, "save")} }
			load = slices.Concat(looks("iptables"), load[:1], looks("ip6tables"), load[1:])
		}
		for _, c := range []struct {
			what      string
			isRestart bool
			next      proxy.Snapshot
			want      []string
		}{
			{"a first load", false, first, load},
			{"the same again", false, first, nil},
			{"one endpoint", false, second, []string{name("iptables", "restore")}},
			{"the same again", false, second, nil},
			{"a restart", true, second, append(looks("iptables"), looks("ip6tables")...)},
		} {
			if c.isRestart {
				s.Restart(t)
			}
			s.Apply(t, c.next)
			if diff := cmp.Diff(c.want, startedSince(t, file), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s: programs started (-want +got):\n%s", c.what, diff)
			}
		}
	})
}

// The backend waits for another program that holds the xtables lock. After LockWait, it
// returns ErrLocked and has changed nothing, which it knows of a change of one table; a later try
// succeeds.
func TestLock(t *testing.T) {
	lock := netnstest.OwnXtablesLock(t)
	s := newStage(t, Options{Flavour: Legacy, LockWait: time.Second, Families: []v1.IPFamily{v1.IPv4Protocol}})
	arguments := filepath.Join(t.TempDir(), "arguments")
	stubRestore(t, s, `echo "$*" >>`+arguments)
	var former, ports []*proxy.ServicePort
	for i := range 8 { // all of them wait once, together
		former = append(former, newPort(v1.IPv4Protocol, i, 5))
		ports = append(ports, moved(former[i], 1000+i))
	}
	s.Apply(t, proxy.NewSnapshot(stagetest.Node(), former...))
	before := s.dump(t)
	startedSince(t, arguments)
	held, err := os.OpenFile(lock, os.O_RDWR|os.O_CREATE, 0o600)
	testenv.NoError(t, err)
	defer held.Close() //nolint:errcheck // nothing is written
	testenv.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
	next := proxy.NewSnapshot(stagetest.Node(), ports...)
	start := time.Now()
	err = s.Backend.Apply(t.Context(), s.Applied, next)
	if !errors.Is(err, ErrLocked) || errors.As(err, new(proxy.PortErrors)) || errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("while the lock is held: got error %v, want %v and no PortErrors", err, ErrLocked)
	}
	if took := time.Since(start); took < 900*time.Millisecond {
		t.Errorf("wait for the lock: got %v, want a second", took)
	}
	testenv.Same(t, []string{"--noflush", "-w", "1"}, startedSince(t, arguments), "arguments of all programs")
	testenv.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_UN))
	if diff := cmp.Diff(before, s.dump(t)); diff != "" {
		t.Errorf("rules without the lock (-before +after):\n%s", diff)
	}
	s.Apply(t, next)
}

// refusedPort returns a service port whose rules iptables refuses.
func refusedPort() *proxy.ServicePort {
	p := newPort(v1.IPv4Protocol, 100, 2)
	p.Affinity = affinity.Config{Timeout: 200 * 365 * 24 * time.Hour}
	return p
}

// The memory that a change allocates does not depend on the number of services.
func TestAllocations(t *testing.T) {
	NeedLargeTransactions(t, NFT)
	s := newStage(t, Options{Flavour: NFT, Families: []v1.IPFamily{v1.IPv4Protocol}})
	var counts []uint64
	for _, n := range []int{20, 1000} {
		all := newPorts(v1.IPv4Protocol, n, 3)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), all...))
		snapshot := s.Applied
		least := ^uint64(0)
		for i := range 5 {
			p := moved(all[n/2], 100_000+i)
			next := snapshot.Revert(proxy.NewSnapshot(stagetest.Node(), p), p.Name)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			s.Apply(t, next)
			runtime.ReadMemStats(&after)
			least = min(least, after.TotalAlloc-before.TotalAlloc)
			snapshot = next
		}
		counts = append(counts, least)
	}
	t.Logf("a change allocates %d bytes with 20 services and %d with 1000", counts[0], counts[1])
	if counts[1] > counts[0]*3/2+16<<10 {
		t.Errorf("bytes that a change allocates: got %d with 20 services and %d with 1000, want about the same", counts[0], counts[1])
	}
}
