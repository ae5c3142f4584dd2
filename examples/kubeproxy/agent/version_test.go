package agent

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestBuildMetrics checks the metrics about the build and the feature gates.
func TestBuildMetrics(t *testing.T) {
	t.Parallel()
	c, out, err := readConfig(t, "", "-feature-gates ComponentFlagz=false")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	registry := prometheus.NewRegistry()
	testenv.NoError(t, c.registerBuild(registry))
	text := exposed(t, registry)
	for _, want := range []string{
		`vipkit_build_info{build_date="`, `,compiler="gc",git_commit="`, `,git_tree_state="`, `,git_version="`, `,go_version="go1.`, `,major="`, `,minor="`, `,platform="`,
		`kubernetes_feature_enabled{name="ComponentFlagz",stage="BETA"} 0`,
		`kubernetes_feature_enabled{name="ComponentStatusz",stage="BETA"} 1`,
		`kubernetes_feature_enabled{name="AllowServiceExternalIPs",stage=""} 1`,
		`kubernetes_feature_enabled{name="KubeProxyIPVS",stage="DEPRECATED"} 1`,
		`kubernetes_feature_enabled{name="WinDSR",stage=""} 1`,
		`kubernetes_feature_enabled{name="AllAlpha",stage="ALPHA"} 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant also %s", text, want)
		}
	}
	if strings.Contains(text, "NativeHistograms") {
		t.Errorf("got\n%s\nwant no gate without meaning", text)
	}
	if strings.Contains(text, "kubernetes_build_info") {
		t.Errorf("got\n%s\nwant no kubernetes_build_info: alerts compare it with the version of Kubernetes", text)
	}
}

// exposed returns the metrics of a registry as a scrape gets them.
func exposed(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	a := &instance{config: newConfig("linux")}
	return get(t, a.pages(registry), "/metrics", "").Body.String()
}

// TestVersionOfTheAgent checks that the version is the agent's, also in a program of another module, whose commit is not
// the agent's.
func TestVersionOfTheAgent(t *testing.T) {
	t.Parallel()
	const other = "example.org/distribution"
	commit := []debug.BuildSetting{{Key: "vcs.revision", Value: "c0ffee"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}}
	for name, tc := range map[string]struct {
		info                          debug.BuildInfo
		version, minor, commit, built string
	}{
		"command":  {debug.BuildInfo{Main: debug.Module{Path: module, Version: "v1.2.3"}, Settings: commit}, "v1.2.3", "2", "c0ffee", "2026-01-02T03:04:05Z"},
		"embedded": {debug.BuildInfo{Main: debug.Module{Path: other, Version: "v9.9.9"}, Deps: []*debug.Module{{Path: "x", Version: "v8.8.8"}, {Path: module, Version: "v1.2.3"}}, Settings: commit}, "v1.2.3", "2", "", ""},
		"replaced": {debug.BuildInfo{Main: debug.Module{Path: other, Version: "v9.9.9"}, Deps: []*debug.Module{{Path: module, Version: "v1.2.3", Replace: &debug.Module{Path: "fork", Version: "v1.4.0"}}}}, "v1.4.0", "4", "", ""},
		"a folder": {debug.BuildInfo{Main: debug.Module{Path: other, Version: "v9.9.9"}, Deps: []*debug.Module{{Path: module, Version: "v1.2.3", Replace: &debug.Module{Path: "../fork"}}}}, "(devel)", "", "", ""},
		"unknown":  {debug.BuildInfo{}, "(devel)", "", "", ""},
	} {
		got := buildOf(&tc.info)
		if got.GitVersion != tc.version || got.Minor != tc.minor || got.GitCommit != tc.commit || got.BuildDate != tc.built || got.GoVersion == "" {
			t.Errorf("%s: got %+v, want version %s, minor %q, commit %q of %q", name, got, tc.version, tc.minor, tc.commit, tc.built)
		}
	}
}
