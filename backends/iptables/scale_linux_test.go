package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// peerLayout writes service ports in the layout of kube-proxy for more than a thousand
// endpoints: a chain for each endpoint, in random order, and the dispatch rules of all
// services with every change.
type peerLayout struct {
	all    []*proxy.ServicePort
	random *rand.Rand
}

func digest16(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}

func (l *peerLayout) service(p *proxy.ServicePort) string {
	return "KUBE-SVC-" + digest16(portText(p.Name)+"tcp")
}

func (l *peerLayout) endpoint(p *proxy.ServicePort, at netip.AddrPort) string {
	return "KUBE-SEP-" + digest16(portText(p.Name)+"tcp"+at.String())
}

// text returns a script with the chains of some services, the dispatch rules of all, and the
// removal of some chains.
func (l *peerLayout) text(changed []*proxy.ServicePort, removed []string, hooks bool) string {
	var chains, rules strings.Builder
	for _, name := range [...]string{"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"} {
		fmt.Fprintf(&chains, ":%s - [0:0]\n", name)
	}
	rules.WriteString("-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n" +
		"-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n" +
		"-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000\n" +
		"-A KUBE-POSTROUTING -m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully\n")
	for _, i := range l.random.Perm(len(l.all)) {
		p := l.all[i]
		at := p.Frontends[0].Addr
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -m comment --comment \"%s cluster IP\" -m tcp -p tcp -d %s --dport %d -j %s\n",
			portText(p.Name), at.Addr(), at.Port(), l.service(p))
	}
	for _, i := range l.random.Perm(len(changed)) {
		l.chains(&chains, &rules, changed[i])
	}
	rules.WriteString("-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\"" +
		" -m addrtype --dst-type LOCAL ! -d 127.0.0.0/8 -j KUBE-NODEPORTS\n")
	for _, name := range removed {
		fmt.Fprintf(&chains, ":%s - [0:0]\n", name)
		fmt.Fprintf(&rules, "-X %s\n", name)
	}
	if hooks {
		rules.WriteString("-I PREROUTING -j KUBE-SERVICES\n-I OUTPUT -j KUBE-SERVICES\n-I POSTROUTING -j KUBE-POSTROUTING\n")
	}
	return "*filter\n:KUBE-SERVICES - [0:0]\n:KUBE-EXTERNAL-SERVICES - [0:0]\n:KUBE-FORWARD - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n*nat\n" + chains.String() + rules.String() + "COMMIT\n"
}

func (l *peerLayout) chains(chains, rules *strings.Builder, p *proxy.ServicePort) {
	service := l.service(p)
	fmt.Fprintf(chains, ":%s - [0:0]\n", service)
	at := p.Frontends[0].Addr
	fmt.Fprintf(rules, "-A %s -m tcp -p tcp -d %s --dport %d ! -s 10.0.0.0/9 -j KUBE-MARK-MASQ\n", service, at.Addr(), at.Port())
	for i, e := range p.Cluster {
		to := l.endpoint(p, e.Addr)
		fmt.Fprintf(chains, ":%s - [0:0]\n", to)
		share := ""
		if left := len(p.Cluster) - i; left > 1 {
			share = fmt.Sprintf(" -m statistic --mode random --probability %.10f", 1/float64(left))
		}
		fmt.Fprintf(rules, "-A %s%s -j %s\n-A %s -s %s -j KUBE-MARK-MASQ\n-A %s -m tcp -p tcp -j DNAT --to-destination %s\n",
			service, share, to, to, e.Addr.Addr(), to, e.Addr)
	}
}

// restoring measures the duration of one run of iptables-restore.
func (s *stage) restoring(t testing.TB, text string) time.Duration {
	t.Helper()
	start := time.Now()
	s.run(t, text, "iptables-restore", "--noflush", "-w", "5")
	return time.Since(start)
}

// BenchmarkLayouts measures, in one run, this package, iptables-restore alone with the same
// text, and iptables-restore with the layout of kube-proxy: a first load, and the replacement
// of one endpoint. Only the ratios are meaningful.
func BenchmarkLayouts(b *testing.B) {
	for _, c := range []struct {
		flavour   Flavour
		services  int
		withPeers bool
	}{{Legacy, 1000, true}, {Legacy, 10_000, true}, {NFT, 1000, true}, {NFT, 10_000, false}} {
		b.Run(fmt.Sprintf("%s/%dx10", c.flavour, c.services), func(b *testing.B) {
			for b.Loop() {
				m := measureLayouts(b, c.flavour, c.services, c.withPeers)
				for name, value := range m {
					b.ReportMetric(value, name)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

const (
	// changes is the number of measured changes, each of one endpoint; the result is the
	// median. The kernel measures some of the times in steps of four milliseconds.
	changes = 15
	// peerChanges is the number for the layout of kube-proxy, which takes longer.
	peerChanges = 5
)

// loads returns the number of measured first loads; the result is the median.
func loads(flavour Flavour, services int) int {
	if flavour == NFT && services > 1000 {
		return 3 // each takes seconds
	}
	return 5
}

// cost has the durations of several runs, and their CPU time including that of started
// programs, all in milliseconds.
type cost struct{ took, used []float64 }

func (c *cost) of(t testing.TB, do func()) {
	t.Helper()
	used, start := cpuTime(t), time.Now()
	do()
	c.took = append(c.took, milliseconds(time.Since(start)))
	c.used = append(c.used, cpuTime(t)-used)
}

// cpuTime returns the CPU time of this process and of those that it started, in
// milliseconds.
func cpuTime(t testing.TB) (sum float64) {
	t.Helper()
	for _, who := range [...]int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		testenv.NoError(t, unix.Getrusage(who, &u))
		sum += float64(u.Utime.Nano()+u.Stime.Nano()) / 1e6
	}
	return sum
}

func measureLayouts(b *testing.B, flavour Flavour, services int, withPeer bool) map[string]float64 {
	o := Options{Flavour: flavour, Families: []v1.IPFamily{v1.IPv4Protocol}}
	all := newPorts(v1.IPv4Protocol, services, 10)
	full := proxy.NewSnapshot(stagetest.Node(), all...)
	text, err := Rules(o, v1.IPv4Protocol, full)
	testenv.NoError(b, err)
	m := map[string]float64{}

	var ours, floor *stage
	var load, least cost
	for i := range loads(flavour, services) {
		ours, floor = newStage(b, o), newStage(b, o)
		both := []func(){
			func() { load.of(b, func() { ours.Apply(b, full) }) },
			func() { least.of(b, func() { floor.restoring(b, text) }) },
		}
		both[i%2]()
		both[1-i%2]()
	}
	m["full-ms"], m["floor-full-ms"] = median(load.took), median(least.took)
	m["full/floor"], m["full/floor-cpu"] = m["full-ms"]/m["floor-full-ms"], median(load.used)/median(least.used)
	snapshot := full
	var change, leastChange cost
	for i := range changes {
		p := moved(all[services/2], 1_000_000+i)
		next := snapshot.Revert(proxy.NewSnapshot(stagetest.Node(), p), p.Name)
		change.of(b, func() { ours.Apply(b, next) })
		snapshot = next
		script := xtables.Script(stagetest.Additions(changedChain(o, p)))
		leastChange.of(b, func() { floor.restoring(b, script) })
	}
	m["change-ms"], m["floor-change-ms"] = median(change.took), median(leastChange.took)
	m["change/floor"], m["change/floor-cpu"] = m["change-ms"]/m["floor-change-ms"], median(change.used)/median(leastChange.used)
	var restart cost
	restart.of(b, func() {
		ours.Restart(b)
		ours.Apply(b, snapshot)
	})
	m["restart-ms"] = median(restart.took)
	if withPeer {
		measurePeer(b, o, all, m)
		m["peer/change"], m["peer/full"] = m["peer-change-ms"]/m["change-ms"], m["peer-full-ms"]/m["full-ms"]
	}
	return m
}

// measurePeer adds the times of the layout of kube-proxy.
func measurePeer(b *testing.B, o Options, all []*proxy.ServicePort, m map[string]float64) {
	peer := newStage(b, o)
	l := &peerLayout{all: all, random: rand.New(rand.NewPCG(1, 2))}
	m["peer-full-ms"] = milliseconds(peer.restoring(b, l.text(all, nil, true)))
	var peerTimes []float64
	for i := range peerChanges {
		at := len(all) / 2
		old := l.all[at]
		p := moved(old, 1_000_000+i)
		l.all[at] = p
		removed := []string{l.endpoint(old, old.Cluster[9].Addr)}
		peerTimes = append(peerTimes, milliseconds(peer.restoring(b, l.text([]*proxy.ServicePort{p}, removed, false))))
	}
	m["peer-change-ms"] = median(peerTimes)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// changedChain renders the chain of endpoints of a service port.
func changedChain(o Options, p *proxy.ServicePort) []xtables.Object {
	o, _ = o.complete() // the options are known to be valid
	r := newRenderer(o, p.Name.Family)
	var chain []xtables.Object
	for _, x := range r.render(stagetest.Node(), p, nil) {
		if x.Key.Table == xtables.NAT && x.Key.Rule == "" {
			chain = append(chain, x)
		}
	}
	return chain
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}
