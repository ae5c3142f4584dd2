package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// inTurns is a source that delivers the snapshots of a channel one after the other.
type inTurns struct {
	next  chan proxy.Snapshot
	given proxy.Snapshot
}

func (i *inTurns) Next(ctx context.Context, after proxy.Snapshot) (proxy.Snapshot, error) {
	if i.given.Generation() != after.Generation() {
		return i.given, nil
	}
	select {
	case i.given = <-i.next:
		return i.given, nil
	case <-ctx.Done():
		return proxy.Snapshot{}, ctx.Err()
	}
}

// flushes returns shell commands that remove all rules at once.
func flushes(t *testing.T, f Flavour) []string {
	t.Helper()
	path := func(name string) string {
		p, err := xtables.LookUp(name)
		testenv.NoError(t, err)
		return p
	}
	restore, plain := path("iptables-"+string(f)+"-restore"), path("iptables-"+string(f))
	all := []string{
		plain + " -w 5 -t nat -F && " + plain + " -w 5 -t filter -F",
		`printf '*nat\nCOMMIT\n*filter\nCOMMIT\n' | ` + restore + " -w 5",
	}
	if f == NFT {
		all = append(all, netnstest.NFT(t)+" flush ruleset", netnstest.NFT(t)+" 'delete table ip nat; delete table ip filter'")
	}
	return all
}

// flusher removes all rules once, as another program would, before or after the n-th program
// that the backend starts.
type flusher struct {
	*stage
	folder string
}

func newFlusher(t *testing.T, o Options, point, flush string) *flusher {
	t.Helper()
	f := &flusher{newStage(t, o), t.TempDir()}
	for name, text := range map[string]string{"point": point, "flush": flush, "count": "0"} {
		testenv.NoError(t, os.WriteFile(filepath.Join(f.folder, name), []byte(text+"\n"), 0o600))
	}
	stubProgram(t, f.stage, "", "cd "+f.folder+`; n=$(($(cat count) + 1)); echo $n >count
flush() { if [ "$1 $n" = "$(cat point)" ]; then (sh flush </dev/null); : >flushed; fi; }
flush before; $real "$@"; status=$?; flush after; exit $status`)
	return f
}

// flushedAt returns when the rules were removed; zero if they were not removed yet.
func (f *flusher) flushedAt(t *testing.T) time.Time {
	t.Helper()
	info, err := os.Stat(filepath.Join(f.folder, "flushed"))
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}
	}
	if err != nil {
		t.Error(err)
		return time.Time{}
	}
	return info.ModTime()
}

// do removes all rules.
func (f *flusher) do(t *testing.T) {
	t.Helper()
	if _, err := netnstest.Run(t, f.NS, "", "/bin/sh", "-c", "cd "+f.folder+" && sh flush && touch flushed"); err != nil {
		t.Error(err)
	}
}

// If another program removes all rules, between any two steps of an agent, they are restored
// when the Runner reports for the second time that the dataplane is verified: only rules that
// were read since then count as verified. For the first report, they may have been read
// before.
func TestFlushAtAnyStepIsRepaired(t *testing.T) {
	for _, flavour := range flavours() {
		t.Run(string(flavour), func(t *testing.T) {
			r := testenv.Random(t)
			kinds := flushes(t, flavour)
			var longest time.Duration
			for n := range 5 {
				for _, side := range []string{"before", "after"} {
					kind := kinds[r.IntN(len(kinds))]
					f := newFlusher(t, Options{Flavour: flavour, Families: []v1.IPFamily{v1.IPv4Protocol}}, fmt.Sprintf("%s %d", side, n), kind)
					took, err := f.recovers(t)
					if err != nil {
						t.Errorf("%s program %d: %q: %v", side, n, kind, err)
					}
					longest = max(longest, took)
				}
			}
			t.Logf("two resyncs after the flush took %v at most, with %v between resyncs", longest, testResyncInterval)
		})
	}
}

const testResyncInterval = 100 * time.Millisecond

// recovers runs an agent through its start and a change. It returns an error if the rules are
// wrong at the second report of a verified dataplane after the flush, and how long that took.
func (f *flusher) recovers(t *testing.T) (took time.Duration, err error) {
	t.Helper()
	client := newRow(t, f.stage)
	source := &inTurns{next: make(chan proxy.Snapshot, 2)}
	vip := newPort(v1.IPv4Protocol, 0, 2)
	for i := range vip.Cluster {
		vip.Cluster[i] = stagetest.Endpoint(v1.IPv4Protocol, 2+i, 8080)
	}
	last := proxy.NewSnapshot(stagetest.Node(), vip, newPort(v1.IPv4Protocol, 1, 0))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	verified, since := 0, 0
	runner := proxy.Runner{
		Source: source, Backend: f.Backend, ResyncInterval: testResyncInterval, RetryInterval: 10 * time.Millisecond,
		Observers: []proxy.Observer{{Verified: func(held proxy.Snapshot) {
			verified++
			at := f.flushedAt(t)
			switch {
			case verified == 1:
				source.next <- last
			case at.IsZero() && verified == 4: // the n-th program was never started
				f.do(t)
			}
			if at.IsZero() || held.Generation() != last.Generation() {
				return
			}
			if since++; since == 2 {
				took, err = time.Since(at), f.works(t, client, vip, held)
				cancel()
			}
		}}},
	}
	source.next <- proxy.NewSnapshot(stagetest.Node(), vip)
	var running sync.WaitGroup
	running.Go(func() {
		if err := runner.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	running.Wait()
	if since < 2 {
		return 0, fmt.Errorf("reports of a verified dataplane after the flush: got %d of %d, want 2", since, verified)
	}
	return took, err
}

// works returns an error unless the rules are complete and a Service can be reached.
func (f *flusher) works(t *testing.T, client *netns.NS, vip *proxy.ServicePort, held proxy.Snapshot) error {
	t.Helper()
	fresh := newStage(t, f.Options)
	fresh.Apply(t, held)
	if diff := cmp.Diff(fresh.effectiveRules(t), f.effectiveRules(t)); diff != "" {
		return fmt.Errorf("rules of a verified dataplane (-first load +got):\n%s", diff)
	}
	return client.Do(func() error { return stagetest.Ask(t.Context(), netip.Addr{}, vip.Frontends[0].Addr.String()) })
}

// If the programs of one family are of the legacy flavour, which alternatives allow, the
// generation of nf_tables does not show changes of its rules.
func TestDriftOfMixedFlavours(t *testing.T) {
	s := newStage(t, Options{})
	folder := t.TempDir()
	for name, flavour := range map[string]Flavour{"iptables": NFT, "ip6tables": Legacy} {
		for _, what := range []string{"-save", "-restore"} {
			path, err := xtables.LookUp(name + "-" + string(flavour) + what)
			if err == nil {
				err = os.Symlink(path, filepath.Join(folder, name+what))
			}
			testenv.NoError(t, err)
		}
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	for range 2 { // the second time, nothing is written
		s.Restart(t)
		s.Apply(t, sampleSnapshot())
	}
	s.Options.Flavour = Legacy
	s.run(t, "*nat\n-F\nCOMMIT\n", "ip6tables-restore", "--noflush", "-w", "5")
	if !s.Backend.Abilities().Drifted(t.Context()) {
		t.Error("after the rules of one family were removed: drifted: got false, want true")
	}
	s.Applied = proxy.Snapshot{}
	s.Apply(t, sampleSnapshot())
	if left := s.run(t, "", "ip6tables-save", "-t", "nat"); !strings.Contains(left, "-A VIPKIT-SERVICES") {
		t.Errorf("rules after a full apply: got\n%s\nwant the chain of services", left)
	}
}

// effectiveRules returns the rules that packets traverse: those of the identity's chains,
// sorted in open chains, and the reachable jumps to them. It omits chains without rules,
// because some are kept for foreign jumps, and counters, which iptables does not list and no packet sees.
func (s *stage) effectiveRules(t *testing.T) map[string][]string {
	t.Helper()
	out, n := map[string][]string{}, newNames("vipkit")
	isOwn := func(name string) bool { return n.Owns(xtables.NAT, name) || n.Owns(xtables.Filter, name) }
	isJump := regexp.MustCompile(`^(-m conntrack --ctstate \S+ )?(-m comment --comment "kubernetes [^"]*" )?-j (VIPKIT-\S+)$|` +
		`^(ct state \S+ )?(counter )?jump (VIPKIT-\S+)( comment "kubernetes [^"]*")?$`)
	isEnd := regexp.MustCompile(`^(-m comment --comment \S+ )?(-j (ACCEPT|DROP|RETURN|REJECT.*)|-g .*)$|` +
		`^(counter )?(accept|drop|return|goto \S+|reject.*)( comment .*)?$`)
	over := map[string]bool{}
	s.each(t, func(chain, name, rule string) {
		jump := isJump.FindStringSubmatch(rule)
		if isOwn(name) || isHook(name) && !over[chain] && jump != nil && isOwn(jump[3]+jump[6]) {
			out[chain] = append(out[chain], strings.Replace(rule, "counter ", "", 1))
		}
		over[chain] = over[chain] || isEnd.MatchString(rule)
	})
	for chain, rules := range out {
		if isOpen := strings.Fields(chain); n.IsOpen(isOpen[len(isOpen)-1]) {
			slices.Sort(rules)
		}
	}
	return out
}

func isHook(chain string) bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, chain)
}

// each visits all rules as the program of the flavour lists them, nft or iptables-save.
func (s *stage) each(t *testing.T, visit func(chain, name, rule string)) {
	t.Helper()
	if s.Options.Flavour == Legacy {
		s.eachLegacy(t, visit)
		return
	}
	table, chain, base := "", "", false
	for line := range strings.Lines(s.tables(t)) {
		line = strings.TrimSpace(regexp.MustCompile(`packets \d+ bytes \d+ `).ReplaceAllString(line+" ", ""))
		switch word := strings.Fields(line); {
		case len(word) > 2 && word[0] == "table":
			table, chain = word[1]+" "+word[2], ""
		case len(word) > 2 && word[0] == "chain":
			chain, base = word[1], false
		case strings.HasPrefix(line, "type "):
			base = true
		case line != "" && line != "}" && chain != "" && (base || !isHook(chain)):
			visit(table+" "+chain, chain, line)
		}
	}
}

func (s *stage) eachLegacy(t *testing.T, visit func(chain, name, rule string)) {
	t.Helper()
	for _, family := range []string{"", "6"} {
		table := ""
		for line := range strings.Lines(s.run(t, "", "ip"+family+"tables-save")) {
			line = strings.TrimSuffix(line, "\n")
			if name, ok := strings.CutPrefix(line, "*"); ok {
				table = "ip" + family + " " + name
			}
			if text, ok := strings.CutPrefix(line, "-A "); ok {
				chain, rule, _ := strings.Cut(text, " ")
				visit(table+" "+chain, chain, rule)
			}
		}
	}
}

// tables returns nft's listing of each table. A listing of several tables at once lacks the
// options of iptables targets.
func (s *stage) tables(t *testing.T) (all string) {
	t.Helper()
	for _, family := range []string{"ip", "ip6"} {
		for _, table := range []string{"nat", "filter"} {
			out, err := netnstest.Run(t, s.NS, "", netnstest.NFT(t), "list", "table", family, table)
			if err == nil {
				all += out
			}
		}
	}
	return all
}
