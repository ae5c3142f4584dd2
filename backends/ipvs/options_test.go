package ipvs

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/affinity"
	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/stagetest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Missing options get defaults, and invalid ones are refused.
func TestOptions(t *testing.T) {
	both := []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	identity := backends.Identity{Name: backends.DefaultName, Mark: 0x20}
	full := Options{
		Identity: identity, Families: both[1:], Scheduler: "mh,mh-port", DrainTimeout: time.Hour, Flavour: Legacy,
		LockWait: time.Second, StrictARP: true, TCPTimeout: time.Second, TCPFinTimeout: time.Minute, UDPTimeout: time.Hour,
	}
	for _, c := range []struct {
		what    string
		given   Options
		want    Options
		refusal string
	}{
		{what: "nothing", want: Options{Identity: identity, Families: both, Scheduler: "rr", DrainTimeout: DefaultDrainTimeout, LockWait: 5 * time.Second}},
		{what: "all", given: full, want: full},
		{what: "a mark of two bits", given: Options{Identity: backends.Identity{Mark: 3}}, refusal: "mark 0x3"},
		{what: "a bit that marks of packets for virtual servers have", given: Options{Identity: backends.Identity{Mark: 1}}, want: Options{
			Identity: backends.Identity{Name: "vipkit", Mark: 1}, Families: both, Scheduler: "rr", DrainTimeout: DefaultDrainTimeout, LockWait: 5 * time.Second,
		}},
		{what: "an unknown family", given: Options{Families: []v1.IPFamily{"IPv5"}}, refusal: `"IPv5"`},
		{what: "an unknown scheduler", given: Options{Scheduler: "RR"}, refusal: `unknown IPVS scheduler "RR"`},
		{what: "an unknown flag of the scheduler", given: Options{Scheduler: "mh,port"}, refusal: `Options.Scheduler: unknown flag "port" of IPVS scheduler "mh"`},
		{what: "an unknown flavour", given: Options{Flavour: "ebtables"}, refusal: `"ebtables"`},
		{what: "a short wait", given: Options{LockWait: time.Second - 1}, refusal: "LockWait"},
		{what: "draining beyond the kernel's numbers", given: Options{DrainTimeout: 40 * 365 * 24 * time.Hour}, refusal: "Options.DrainTimeout"},
		{what: "a fraction of a second", given: Options{UDPTimeout: time.Second / 2}, refusal: "Options.UDPTimeout"},
		{what: "a negative timeout", given: Options{TCPTimeout: -time.Second}, refusal: "Options.TCPTimeout"},
		{what: "a timeout that is too long for the kernel", given: Options{TCPFinTimeout: 720 * time.Hour}, refusal: "Options.TCPFinTimeout"},
		{what: "the name of sets of IPv6", given: Options{Identity: backends.Identity{Name: "lb-6"}}, refusal: `identity "lb-6"`},
	} {
		got, err := c.given.complete()
		if c.refusal != "" {
			if err == nil || !strings.Contains(err.Error(), c.refusal) {
				t.Errorf("%s: got error %v, want one with %q", c.what, err, c.refusal)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: got error %v; options (-want +got):\n%s", c.what, err, diff)
		}
	}
}

func testRenderer(t testing.TB) *renderer {
	t.Helper()
	o, err := Options{}.complete()
	testenv.NoError(t, err)
	r, err := newRenderer(o)
	testenv.NoError(t, err)
	return r
}

// testFacts are the facts of a node that has all schedulers.
func testFacts() facts {
	return facts{schedulers: Schedulers(), host: []netip.Addr{nodeAddress()}}
}

func testEnv() backends.Env { return backends.Env{Node: stagetest.Node(), Facts: testFacts()} }

// A Service chooses its scheduler. One that cannot be used is reported, and the default
// serves the Service.
func TestSchedulers(t *testing.T) {
	sticky := affinity.Config{Timeout: 10800 * time.Second}
	for _, c := range []struct {
		what       string
		annotation map[string]string
		affinity   affinity.Config
		available  []string
		want       value
		problem    string
	}{
		{"default", nil, affinity.Config{}, Schedulers(), value{scheduler: "rr"}, ""},
		{"chosen", map[string]string{SchedulerAnnotation: "lc"}, affinity.Config{}, Schedulers(), value{scheduler: "lc"}, ""},
		{"fallback", map[string]string{SchedulerAnnotation: "sh"}, affinity.Config{}, Schedulers(), value{scheduler: "sh", flags: flagFallback}, ""},
		{"unknown", map[string]string{SchedulerAnnotation: "x"}, affinity.Config{}, Schedulers(), value{scheduler: "rr"}, `unknown IPVS scheduler "x"`},
		{"flag", map[string]string{SchedulerAnnotation: "mh,mh-port"}, affinity.Config{}, Schedulers(), value{scheduler: "mh", flags: flagFallback | flagPort}, ""},
		{"flags", map[string]string{SchedulerAnnotation: "sh,sh-fallback,sh-port"}, affinity.Config{}, Schedulers(), value{scheduler: "sh", flags: flagFallback | flagPort}, ""},
		{"flag of another one", map[string]string{SchedulerAnnotation: "sh,mh-port"}, affinity.Config{}, Schedulers(), value{scheduler: "rr"}, `unknown flag "mh-port" of IPVS scheduler "sh", want sh-fallback or sh-port`},
		{"flag without its scheduler", map[string]string{SchedulerAnnotation: "mh,port"}, affinity.Config{}, Schedulers(), value{scheduler: "rr"}, `unknown flag "port"`},
		{"empty flag", map[string]string{SchedulerAnnotation: "mh,"}, affinity.Config{}, Schedulers(), value{scheduler: "rr"}, `unknown flag ""`},
		{"no flags", map[string]string{SchedulerAnnotation: "lc,lc-port"}, affinity.Config{}, Schedulers(), value{scheduler: "rr"}, `"lc" has no flags`},
		{"only a flag", map[string]string{SchedulerAnnotation: "mh-port"}, affinity.Config{}, Schedulers(), value{scheduler: "rr"}, `unknown IPVS scheduler "mh-port"`},
		{"affinity, flag", map[string]string{SchedulerAnnotation: "mh,mh-port"}, sticky, Schedulers(), value{scheduler: "mh", flags: flagFallback | flagPort | flagPersistent, timeout: 10800}, ""},
		{"missing", map[string]string{SchedulerAnnotation: "lc"}, affinity.Config{}, []string{"rr"}, value{scheduler: "rr"}, "load the kernel module ip_vs_lc"},
		{"affinity", nil, sticky, Schedulers(), value{scheduler: "mh", flags: flagFallback | flagPersistent, timeout: 10800}, ""},
		{"affinity without mh", nil, sticky, []string{"rr"}, value{scheduler: "rr", flags: flagPersistent, timeout: 10800}, "load the kernel module ip_vs_mh"},
		{"affinity without mh, chosen", map[string]string{SchedulerAnnotation: "rr"}, sticky, []string{"rr"}, value{scheduler: "rr", flags: flagPersistent, timeout: 10800}, ""},
		{"affinity, chosen", map[string]string{SchedulerAnnotation: "wlc"}, sticky, Schedulers(), value{scheduler: "wlc", flags: flagPersistent, timeout: 10800}, ""},
	} {
		r, p := testRenderer(t), stagetest.Port(v1.IPv4Protocol, 1, 2)
		p.Annotations, p.Affinity, p.Frontends = c.annotation, c.affinity, p.Frontends[:1]
		if got := r.server(c.available, p); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.what, got, c.want)
		}
		problems := r.limits(c.available, p)
		switch {
		case c.problem == "" && len(problems) > 0:
			t.Errorf("%s: got limit %v, want none", c.what, problems[0])
		case c.problem != "" && (len(problems) != 1 || !strings.Contains(problems[0].Err.Error(), c.problem)):
			t.Errorf("%s: got limits %v, want one with %q", c.what, problems, c.problem)
		}
	}
}

// Services whose affinity IPVS keeps only in part are reported.
func TestAffinityLimits(t *testing.T) {
	r := testRenderer(t)
	p := stagetest.Port(v1.IPv4Protocol, 1, 2)
	p.Affinity.Timeout = time.Minute
	p.Frontends = append(p.Frontends, stagetest.NodePort(v1.IPv4Protocol, 30000))
	if got := r.limits(Schedulers(), p); len(got) != 1 || got[0].Field != "spec.sessionAffinity" {
		t.Errorf("several addresses: got limits %v, want one of spec.sessionAffinity", got)
	}
	p.ExternalLocal, p.Local = true, p.Cluster[:1]
	if got := r.limits(Schedulers(), p); len(got) != 2 {
		t.Errorf("several addresses and two pools: got limits %v, want two", got)
	}
	p.Cluster, p.Local = p.Cluster[:1], nil
	if got := r.limits(Schedulers(), p); len(got) != 0 {
		t.Errorf("one endpoint: got limits %v, want none", got)
	}
	p.Name.Family = v1.IPv6Protocol
	r.options.Families = r.options.Families[:1]
	if got := r.limits(Schedulers(), p); len(got) != 0 {
		t.Errorf("a family that is not served: got limits %v, want none", got)
	}
}
