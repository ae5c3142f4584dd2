package backendtest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// badVariable says that the process runs the suite with a bad backend.
const badVariable = "VIPKIT_BAD_BACKEND"

// bad is a backend that does what its fields say; nothing by default.
type bad struct {
	proxy.NoAbilities
	apply   func(context.Context, proxy.Snapshot) error
	cleanUp func(context.Context) error
}

func (b bad) Apply(ctx context.Context, _, next proxy.Snapshot) error {
	if b.apply == nil {
		return nil
	}
	return b.apply(ctx, next)
}

func (b bad) Cleanup(ctx context.Context) error {
	if b.cleanUp == nil {
		return nil
	}
	return b.cleanUp(ctx)
}

// untilEnd waits for the end of a context, and forEver waits longer.
func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func forEver(context.Context) error { select {} }

// translating translates packets to the IPv4 frontends of a snapshot, each to the endpoint that choose
// returns for its service port.
func translating(t testing.TB, choose func(*proxy.ServicePort) string) bad {
	return loading(t, "nat", func(p *proxy.ServicePort) string {
		if to := choose(p); to != "" {
			return "dnat to " + to
		}
		return ""
	})
}

// loading has base chains of some type with a rule for each IPv4 frontend that is not a node port, with
// the verdict for its service port.
func loading(t testing.TB, kind string, verdict func(*proxy.ServicePort) string) bad {
	node, err := netns.Current()
	testenv.NoError(t, err)
	testenv.CloseAtEnd(t, node)
	load := func(text string) error {
		_, err := netnstest.Run(t, node, "table ip bad\ndelete table ip bad\n"+text, netnstest.NFT(t), "-f", "-")
		return err
	}
	return bad{
		apply: func(_ context.Context, next proxy.Snapshot) error {
			var rules strings.Builder
			for p := range next.All() {
				for _, f := range p.Frontends {
					if v := verdict(p); f.Addr.Addr().Is4() && !f.Addr.Addr().IsUnspecified() && v != "" {
						fmt.Fprintf(&rules, "ip daddr %v ip protocol %s th dport %d %s\n",
							f.Addr.Addr(), strings.ToLower(string(p.Name.Protocol)), f.Addr.Port(), v)
					}
				}
			}
			return load("table ip bad {\n" +
				"chain from { type " + kind + " hook prerouting priority -100;\n" + rules.String() + "}\n" +
				"chain node { type " + kind + " hook output priority -100;\n" + rules.String() + "}\n}\n")
		},
		cleanUp: func(context.Context) error { return load("") },
	}
}

// badBackends are backends that the suite must tell from good ones.
func badBackends() map[string]func(testing.TB) proxy.Backend {
	const local = "10.0.0.5:8080"
	own := func(p *proxy.ServicePort) string {
		if len(p.Cluster) == 0 {
			return ""
		}
		return p.Cluster[0].Addr.String()
	}
	return map[string]func(testing.TB) proxy.Backend{
		"nothing": func(testing.TB) proxy.Backend { return bad{} },
		"hangs": func(testing.TB) proxy.Backend {
			return bad{apply: func(ctx context.Context, _ proxy.Snapshot) error { return untilEnd(ctx) }}
		},
		"hangs-for-ever": func(testing.TB) proxy.Backend {
			return bad{apply: func(ctx context.Context, _ proxy.Snapshot) error { return forEver(ctx) }}
		},
		"loses-all": func(t testing.TB) proxy.Backend {
			return loading(t, "filter", func(*proxy.ServicePort) string { return "drop" })
		},
		"wrong-endpoint": func(t testing.TB) proxy.Backend {
			return translating(t, func(p *proxy.ServicePort) string {
				if own(p) == "" {
					return ""
				}
				return local
			})
		},
		"never-refuses": func(t testing.TB) proxy.Backend {
			return translating(t, func(p *proxy.ServicePort) string {
				if to := own(p); to != "" {
					return to
				}
				return local
			})
		},
	}
}

// runSuite runs the suite with a bad backend, or the laws without packets if the name begins so.
func runSuite(t *testing.T, name string) {
	t.Helper()
	held, soon := "", &course{patience: 3 * time.Second}
	hold := func(_ context.Context, next proxy.Snapshot) error {
		held = fmt.Sprint(next.Len(), " service ports")
		return nil
	}
	laws := map[string]bad{"laws/nothing": {}, "laws/hangs-in-cleanup": {apply: hold, cleanUp: untilEnd}}
	if b, isBad := laws[name]; isBad {
		RunLaws(t, LawsConfig{course: soon, New: func(testing.TB) proxy.Backend { return b }, Dump: func(testing.TB) string { return held }})
		return
	}
	open, isBad := badBackends()[name]
	if !isBad {
		known := slices.Sorted(maps.Keys(badBackends()))
		t.Fatalf("%s: unknown backend %q, want one of %q or %q", badVariable, name, known, slices.Sorted(maps.Keys(laws)))
	}
	Run(t, Config{course: soon, New: open, Dump: func(testing.TB) string { return "" }})
}

// The suite ends soon with a bad backend, and names the first law that it breaks, the packet, what
// was expected and what was seen. It says what it leaves out.
func TestBadBackends(t *testing.T) {
	if name := os.Getenv(badVariable); name != "" {
		runSuite(t, name)
		return
	}
	t.Parallel()
	netnstest.NeedNamespaces(t)
	const (
		basics = "--- FAIL: TestBadBackends/Basics"
		laws   = "--- FAIL: TestBadBackends/Laws/Basics"
		rest   = " would tell nothing new, and are left out"
	)
	for name, want := range map[string][]string{
		"nothing": {
			basics, "client to 10.96.1.1:80/TCP:", "got  gateway sees 10.0.0.6", "want all of local sees 10.0.0.6", "because ",
			"more packets had wrong outcomes", "Basics failed: the other tests" + rest,
		},
		"hangs": {
			basics, "Apply: got no result within ", "until its context ended (then context deadline exceeded)",
			"Apply of the backend hangs: the other tests" + rest,
		},
		"hangs-for-ever": {
			basics, "Apply: got no result within ", "and none 1s after its context ended",
			"Apply of the backend hangs: the other tests" + rest,
		},
		"loses-all": {
			basics, "client to 10.96.1.1:80/TCP:", "got  silence", "want all of local sees 10.0.0.6", "Basics failed: the other tests" + rest,
		},
		"wrong-endpoint": {
			basics, "client to 10.96.1.2:80/TCP:", "got  local sees 10.0.0.6", "want all of remote sees 10.0.0.6",
			"Basics failed: the other tests" + rest,
		},
		"never-refuses": {
			basics, "client to 10.96.1.3:80/TCP:", "got  local sees 10.0.0.6", "want one of reset", "no endpoint anywhere can serve",
			"Basics failed: the other tests" + rest,
		},
		"laws/nothing": {
			laws, "Apply of a Service at 10.96.1.1 with 3 endpoints: got no error and the same dump as before",
			"Basics failed: the other laws" + rest,
		},
		"laws/hangs-in-cleanup": {
			laws, "Cleanup: got no result within ", "Cleanup of the backend hangs: the other laws" + rest,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			output := runBad(t, "^TestBadBackends$", badVariable+"="+name)
			for _, text := range want {
				if !strings.Contains(output, text) {
					t.Errorf("output: got no %q, want one, in\n%s", text, output)
				}
			}
			for _, text := range []string{"panic", "/Scenarios", "/Laws/Idempotence"} {
				if strings.Contains(output, text) {
					t.Errorf("output: got %q, want none, in\n%s", text, output)
				}
			}
		})
	}
}

// What selects no test is a mistake, and so is a value that a variable does not have.
func TestUnknownNames(t *testing.T) {
	t.Parallel()
	netnstest.NeedNamespaces(t)
	for _, c := range []struct{ selects, variable, want string }{
		{"^TestBadBackends$/^Law$", badVariable + "=nothing", `-run and -skip select no test of the suite, want some of ["Basics" "Scenarios"`},
		{"^TestBadBackends$/^Laws$/^Idempotenz$", badVariable + "=nothing", `"Laws/Idempotence"`},
		{"^TestBadBackends$", "VIPKIT_EVERYTHING=no", `VIPKIT_EVERYTHING: got "no", want 1 or nothing`},
		{"^TestBadBackends$", badVariable + "=good", `VIPKIT_BAD_BACKEND: unknown backend "good", want one of ["hangs" `},
	} {
		if output := runBad(t, c.selects, badVariable+"=nothing", c.variable); !strings.Contains(output, c.want) {
			t.Errorf("%s of %s: got no %q, want it in\n%s", c.variable, c.selects, c.want, output)
		}
	}
}

// runBad runs tests with environment variables in another process, and returns the output. They must
// fail, and end long before the time limit of go test.
func runBad(t *testing.T, selects string, variables ...string) string {
	t.Helper()
	self, err := os.Executable()
	testenv.NoError(t, err)
	var output bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-test.run="+selects, "-test.timeout=2m")
	cmd.Env = append(os.Environ(), variables...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err == nil {
		t.Errorf("got success, want a failure, after\n%s", &output)
	}
	return output.String()
}
