package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

// runsItself marks the copy of the test binary that is the program.
const runsItself = "SCALE_TEST_RUNS_ITSELF"

func TestMain(m *testing.M) {
	if os.Getenv(runsItself) != "" {
		main()
	}
	os.Exit(netnstest.Main(m))
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

// TestReport: a small world gives a report with everything in it, and figures
// that do not depend on the machine are right.
func TestReport(t *testing.T) {
	netnstest.NeedNamespaces(t)
	const services, endpoints = 30, 4
	out, said, err := scale(t, "-services", strconv.Itoa(services), "-endpoints", strconv.Itoa(endpoints), "-changes", "10", "-floor")
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	var r map[string]any
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v in:\n%s", err, out)
	}
	// A service has a ClusterIP and a frontend, an endpoint a slot and a hairpin.
	want := map[string]float64{"elements": 2*services + 2*services*endpoints, "opsPerChange": 4, "restartOps": 0}
	for name, n := range want {
		if r[name] != n {
			t.Errorf("%s: got %v, want %v", name, r[name], n)
		}
	}
	for _, name := range []string{"coldMs", "changeP50Us", "changeP99Us", "scaleP50Us", "burstMs", "rssMiB", "restartMs", "floorColdMs", "floorChangeP50Us"} {
		if n, ok := r[name].(float64); !ok || n <= 0 {
			t.Errorf("%s: got %v, want a figure", name, r[name])
		}
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{{"-services", "0"}, {"-endpoints", "-1"}, {"-backend", "other"}, {"-changes", "x"}} {
		if out, said, err := scale(t, args...); err == nil || out != "" || !strings.Contains(said, args[0]) {
			t.Errorf("%s: got error %v and %q, want a failure that names %s", slices.Concat([]string{"scale"}, args), err, said, args[0])
		}
	}
}
