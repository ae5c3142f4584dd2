package iptables

import (
	"context"
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
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/proxy"
)

// standIn puts a shell script in the place of iptables-restore for IPv4 in a
// programs' folder; "$real" is the program itself. It gives a file with a line
// for each program that was started.
func standIn(t *testing.T, s *stage, script string) (started string) {
	t.Helper()
	return standInFor(t, s, "restore", script)
}

// standInFor does so for iptables-save, or iptables-restore, or both where none is named.
func standInFor(t *testing.T, s *stage, program, script string) (started string) {
	t.Helper()
	folder := t.TempDir()
	started = filepath.Join(folder, "started")
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"save", "restore"} {
			file := fmt.Sprintf("%s-%s-%s", name, s.Options.Flavour, what)
			real, err := lookUp(file)
			if err != nil {
				t.Fatal(err)
			}
			text := "#!/bin/sh\nreal=" + real + "\necho " + file + " >>" + started + "\n"
			if name == "iptables" && (what == program || program == "") {
				text += script + "\n"
			}
			text += "exec $real \"$@\"\n"
			if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
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
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// A change takes one process, and nothing takes none. A look at what is there takes
// one, or of the legacy flavour one for each table that there is.
func TestProcesses(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		file := standIn(t, s, "")
		name := func(stem, what string) string { return fmt.Sprintf("%s-%s-%s", stem, s.Options.Flavour, what) }
		looks := func(stem string) []string { return slices.Repeat([]string{name(stem, "save")}, 2) }
		all := append(world(v1.IPv4Protocol, 3, 2), world(v1.IPv6Protocol, 3, 2)...)
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

// Others that hold the lock are waited for; then nothing is changed, the error
// says so, and another try succeeds.
func TestLock(t *testing.T) {
	s := newStage(t, Options{Flavour: Legacy, LockWait: time.Second, Families: []v1.IPFamily{v1.IPv4Protocol}})
	told := filepath.Join(t.TempDir(), "told")
	standIn(t, s, `echo "$*" >>`+told)
	s.Apply(t, sampleWorld())
	before := s.dump(t)
	startedSince(t, told)
	held, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close() //nolint:errcheck // nothing is written
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var ports []*proxy.ServicePort
	for i := range 8 { // all of them wait together, and once
		ports = append(ports, newPort(v1.IPv4Protocol, i, 5))
	}
	next := proxy.NewSnapshot(stagetest.Node(), ports...)
	start := time.Now()
	err = s.Backend.Apply(t.Context(), s.Applied, next)
	if !errors.Is(err, ErrLocked) || errors.As(err, new(proxy.PortErrors)) || errors.Is(err, proxy.ErrDataplaneLost) {
		t.Errorf("under a lock: got error %v, want %v and nobody blamed", err, ErrLocked)
	}
	if took := time.Since(start); took < 900*time.Millisecond {
		t.Errorf("waited %v for the lock, want a second", took)
	}
	if diff := cmp.Diff([]string{"--noflush", "-w", "1"}, startedSince(t, told)); diff != "" {
		t.Errorf("what programs were told, all together (-want +got):\n%s", diff)
	}
	if err := unix.Flock(int(held.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, s.dump(t)); diff != "" {
		t.Errorf("without the lock, something was changed (-before +after):\n%s", diff)
	}
	s.Apply(t, next)
}

func TestMissingPrograms(t *testing.T) {
	at, err := here()
	if err != nil {
		t.Fatal(err)
	}
	_, err = findPrograms(t.Context(), &Options{Flavour: "unheard-of"}, v1.IPv6Protocol, at)
	if !errors.Is(err, proxy.ErrUnsupported) {
		t.Fatalf("got error %v, want %v", err, proxy.ErrUnsupported)
	}
	for _, want := range []string{"ip6tables-unheard-of-", "install the package iptables"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

// The programs say themselves of which flavour they are.
func TestDefaultFlavour(t *testing.T) {
	OwnLock(t)
	at, err := here()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	t.Setenv("PATH", folder)
	for says, want := range map[string]Flavour{
		"echo 'iptables-restore v1.8.9 (nf_tables)'": NFT, "echo 'iptables-restore v1.8.9 (legacy)'": Legacy, "echo 'iptables-restore v1.6'": Legacy, "exit 1": Default,
	} {
		for _, name := range []string{"iptables-save", "iptables-restore"} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+says+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		p, err := findPrograms(t.Context(), &Options{LockWait: time.Second}, v1.IPv4Protocol, at)
		if p.flavour != want || (err != nil) != (want == Default) {
			t.Errorf("%s: got flavour %q and error %v, want %q", says, p.flavour, err, want)
		}
	}
}

// Programs are found where the path of users does not lead, and each identity and
// family waits for its own.
func TestFindPrograms(t *testing.T) {
	at, err := here()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	offsets := map[int64]bool{}
	for _, identity := range []string{"vipkit", "other"} {
		for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
			p, err := findPrograms(t.Context(), &Options{Flavour: Legacy, LockWait: time.Second, Identity: backends.Identity{Name: identity}}, family, at)
			if err != nil {
				t.Fatal(err)
			}
			offsets[p.process.guard.at] = true
			if strings.Contains(p.saver+p.restorer, "ip6") != (family == v1.IPv6Protocol) || strings.Contains(p.registry, "ip6") != (family == v1.IPv6Protocol) {
				t.Errorf("%s: got %s, %s and %s", family, p.saver, p.restorer, p.registry)
			}
		}
	}
	if len(offsets) != 4 {
		t.Errorf("two identities of two families have %d guards, want 4", len(offsets))
	}
}

// poisons are service ports that cannot be programmed: some are found out before
// anything is written, others by iptables.
func poisons() map[string]*proxy.ServicePort {
	all := map[string]*proxy.ServicePort{}
	for i, name := range []string{"wrong family", "protocol", "no endpoints to forward to", "absurd timeout", "odd zone"} {
		all[name] = newPort(v1.IPv4Protocol, 100+i, 2)
	}
	all["wrong family"].Cluster[1] = stagetest.Endpoint(v1.IPv6Protocol, 1, 8080)
	all["protocol"].Name.Protocol = "ICMP"
	all["no endpoints to forward to"].Cluster = nil
	all["absurd timeout"].Affinity = affinity.Config{Timeout: 200 * 365 * 24 * time.Hour}
	all["odd zone"].Frontends[0].Addr = newPort(v1.IPv6Protocol, 1, 0).Frontends[0].Addr
	return all
}

// One service port that cannot be programmed stops no other, at the first load
// and later; it is named.
func TestPoison(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		good := world(v1.IPv4Protocol, 5, 2)
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), good...))
		want := s.dump(t)
		for name, bad := range poisons() {
			together := proxy.NewSnapshot(stagetest.Node(), append(world(v1.IPv4Protocol, 5, 2), bad)...)
			for _, old := range []proxy.Snapshot{{}, proxy.NewSnapshot(stagetest.Node(), good[:3]...)} {
				s.Restart(t)
				if err := s.Backend.Cleanup(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !old.IsZero() {
					s.Apply(t, old)
				}
				err := s.Backend.Apply(t.Context(), old, together)
				if errors.Is(err, proxy.ErrDataplaneLost) { // as a Runner does
					err = s.Backend.Apply(t.Context(), proxy.Snapshot{}, together)
				}
				failed, ok := errors.AsType[proxy.PortErrors](err)
				if !ok || len(failed) != 1 || failed[bad.Name] == nil {
					t.Fatalf("%s: got error %v, want one that names %s alone", name, err, bad.Name)
				}
				if diff := cmp.Diff(want, s.dump(t)); diff != "" {
					t.Errorf("%s: the rules of the others (-want +got):\n%s", name, diff)
				}
			}
		}
	})
}

// A program that is stopped in its work leaves nobody in the belief of knowing
// what is there.
func TestStopped(t *testing.T) {
	eachFlavour(t, func(t *testing.T, s *stage) {
		waits := filepath.Join(t.TempDir(), "waits")
		if err := unix.Mkfifo(waits, 0o600); err != nil {
			t.Fatal(err)
		}
		flag := filepath.Join(t.TempDir(), "wait")
		standIn(t, s, "if [ -e "+flag+" ]; then echo >"+waits+"; exec sleep 60; fi")
		s.Apply(t, proxy.NewSnapshot(stagetest.Node(), newPort(v1.IPv4Protocol, 0, 2)))
		if err := os.WriteFile(flag, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		next := proxy.NewSnapshot(stagetest.Node(), newPort(v1.IPv4Protocol, 0, 3))
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		why := errors.New("somebody has had enough")
		go func() {
			_, _ = os.ReadFile(waits) // that it begins is all there is to know
			cancel(why)
		}()
		err := s.Backend.Apply(ctx, s.Applied, next)
		if !errors.Is(err, proxy.ErrDataplaneLost) || !errors.Is(err, why) {
			t.Errorf("got error %v, want %v and %v", err, proxy.ErrDataplaneLost, why)
		}
		if err := os.Remove(flag); err != nil {
			t.Fatal(err)
		}
		s.Applied = proxy.Snapshot{}
		s.Apply(t, next)
	})
}

// What a change allocates does not follow the number of services.
func TestAllocations(t *testing.T) {
	s := newStage(t, Options{Flavour: NFT, Families: []v1.IPFamily{v1.IPv4Protocol}})
	var counts []uint64
	for _, n := range []int{20, 1000} {
		all := world(v1.IPv4Protocol, n, 3)
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
	t.Logf("a change allocates %d bytes among 20 services and %d among 1000", counts[0], counts[1])
	if counts[1] > counts[0]*3/2+16<<10 {
		t.Errorf("a change allocates %d bytes among 20 services and %d among 1000, want about the same", counts[0], counts[1])
	}
}
