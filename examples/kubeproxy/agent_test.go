package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/proxy"
)

// Problems are logged when they are new, and whoever makes very many, or the same again
// and again, does not fill the log.
func TestProblemsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := 0
		var told told
		log := funcr.New(func(_, _ string) { lines++ }, funcr.Options{})
		problem := func(i int) *proxy.Problem {
			name := types.NamespacedName{Namespace: "default", Name: fmt.Sprint("s", i)}
			return &proxy.Problem{Kind: "Service", NamespacedName: name, Field: "spec", Err: fmt.Errorf("%s", strings.Repeat("x", i))}
		}
		var many []*proxy.Problem
		for i := range 3 * maxTold {
			many = append(many, problem(i))
		}
		for i, step := range []struct {
			after    time.Duration
			problems []*proxy.Problem
			want     int
		}{
			{0, many[:2], 2},
			{0, many[:2], 0},
			{0, []*proxy.Problem{problem(0), problem(1)}, 0}, // the same, found again
			{0, many[:3], 1},
			{0, many[:1], 0},
			{0, many[:2], 1}, // which was solved in the meantime
			{time.Minute, many, maxTold + 1},
			{0, many, 0},
			{0, nil, 0},
			{time.Minute - 1, many, 0},
			{0, nil, 0},
			{1, many[:maxTold], maxTold},
			{0, nil, 0},
			{0, many[:2], 1},
		} {
			time.Sleep(step.after)
			lines = 0
			if told.tell(log, step.problems); lines != step.want {
				t.Errorf("step %d: %d lines are logged, wanted %d", i, lines, step.want)
			}
		}
	})
}

// What keeps the program from the API server is said at once, and before anything of
// this machine is changed.
func TestNoWayToTheAPIServer(t *testing.T) {
	folder := t.TempDir()
	for text, want := range map[string]string{
		"":                                 "no such file",
		"- a":                              "cannot unmarshal array",
		"a: [":                             "did not find expected node content",
		"apiVersion: v1\nkind: Config\n":   "no configuration has been provided",
		"apiVersion: v2\nkind: Dragon\n":   "no kind \\\"Dragon\\\" is registered",
		kubeconfigOf("ftp://:x"):           "host must be a URL",
		kubeconfigOf("https://192.0.2.1 "): "host must be a URL",
	} {
		path := filepath.Join(folder, fmt.Sprint(len(text)))
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var out strings.Builder
		status := run([]string{"-kubeconfig", path, "-proxy-mode", "none"}, &out, &out)
		if status != 1 || !strings.Contains(out.String(), "API server: ") || !strings.Contains(out.String(), want) {
			t.Errorf("kubeconfig %q: status %d, and it says\n%s\nwanted 1 and %s", text, status, &out, want)
		}
	}
}

func kubeconfigOf(server string) string {
	return "apiVersion: v1\nkind: Config\ncurrent-context: test\nclusters: [{name: test, cluster: {server: '" + server + "'}}]\n" +
		"contexts: [{name: test, context: {cluster: test}}]\n"
}

// What cannot be removed is tried soon again, and ever more seldom.
func TestPauses(t *testing.T) {
	b, last := pauses(), time.Duration(0)
	for range 30 {
		p := b.Step()
		if last == 0 && p != 5*time.Second || p < last || p > 10*time.Minute {
			t.Errorf("a pause of %v after one of %v, want 5 s, then longer ones up to 10 minutes", p, last)
		}
		last = p
	}
	if last != 10*time.Minute {
		t.Errorf("the pauses end with %v, want 10 minutes", last)
	}
}

// A program that is told of no API server says which setting tells it.
func TestNoAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	var out strings.Builder
	const want = "set clientConnection.kubeconfig or -kubeconfig"
	if status := run([]string{"-proxy-mode", "none"}, &out, &out); status != 1 || !strings.Contains(out.String(), want) {
		t.Errorf("status %d, and it says\n%s\nwanted 1 and %s", status, &out, want)
	}
}
