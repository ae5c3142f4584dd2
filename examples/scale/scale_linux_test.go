package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// runsItself, in the environment, makes the test binary run the program.
const runsItself = "SCALE_TEST_RUNS_ITSELF"

func TestMain(m *testing.M) {
	if os.Getenv(runsItself) != "" {
		main()
	}
	os.Exit(netnstest.Main(m, testenv.Namespaces))
}

func scale(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, said strings.Builder
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), runsItself+"=yes")
	cmd.Stdout, cmd.Stderr = &out, &said
	err = cmd.Run()
	return out.String(), said.String(), err
}

// TestReport checks that the report of a small world has all figures, and that those that do not
// depend on the machine are right.
func TestReport(t *testing.T) {
	netnstest.NeedNamespaces(t)
	for _, c := range []reportCase{
		// A service has a ClusterIP and a frontend, an endpoint a slot and a hairpin.
		{"nftables", []string{"-floor"}, []string{"floorColdMs", "floorChangeP50Us"}, 2*services + 2*services*endpoints, 0, 4},
		// A service has a rule for its frontend, its port and each endpoint; the
		// chain of endpoints is written as a whole.
		{"iptables", nil, nil, 2*services + services*endpoints, 28, 1 + endpoints},
		// A service has a ClusterIP and a frontend; endpoints are not in the kernel.
		{"userspace", nil, nil, 2 * services, 0, 0},
		// A service has a load balancer, an endpoint an endpoint; a change makes one,
		// modifies the load balancer and deletes one.
		{"kernelspace", nil, []string{"coldCalls", "callsPerChange", "restartCalls"}, services + services*endpoints, 0, 3},
	} {
		t.Run(c.backend, c.run)
	}
}

// The small world.
const services, endpoints = 30, 4

// reportCase is what the report of a backend must have.
type reportCase struct {
	backend string
	flags   []string
	figures []string
	// elements is the number of elements of the Services; always, of those that always exist.
	elements, always int
	opsPerChange     float64
}

func (c *reportCase) run(t *testing.T) {
	if c.backend == "iptables" || c.backend == "ipvs" {
		netnstest.Program(t, "iptables-restore")
	}
	args := append([]string{"-backend", c.backend, "-services", strconv.Itoa(services), "-endpoints", strconv.Itoa(endpoints), "-changes", "10"}, c.flags...)
	out, said, err := scale(t, args...)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	var r map[string]any
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in:\n%s", err, out)
	}
	want := map[string]float64{"elements": float64(c.elements + c.always), "opsPerChange": c.opsPerChange, "restartOps": 0}
	for name, n := range want {
		if r[name] != n {
			t.Errorf("%s: got %v, want %v", name, r[name], n)
		}
	}
	for _, name := range append(c.figures, "emptyMs", "coldMs", "changeP50Us", "changeP99Us", "scaleP50Us", "burstMs", "rssMiB", "restartMs") {
		if n, ok := r[name].(float64); !ok || n <= 0 {
			t.Errorf("%s: got %v, want a figure", name, r[name])
		}
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-services", "0"}, {"-endpoints", "-1"}, {"-backend", "other"}, {"-floor", "-backend", "iptables"}, {"-changes", "x"}} {
		if out, said, err := scale(t, args...); err == nil || out != "" || !strings.Contains(said, args[0]) {
			t.Errorf("%s: got error %v and %q, want a failure that names %s", slices.Concat([]string{"scale"}, args), err, said, args[0])
		}
	}
}
