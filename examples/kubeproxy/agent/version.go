package agent

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// build says what the program was built from.
type build struct {
	path    string // of the module
	version string // of the module, not of Kubernetes
	// commit and time are those of the revision in version control; state is clean or dirty.
	commit, time, state string
}

// readBuild returns what Go has recorded about the build.
func readBuild() build {
	b := build{version: "(devel)"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.path, b.version = info.Main.Path, cmp.Or(info.Main.Version, b.version)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.commit = s.Value
		case "vcs.time":
			b.time = s.Value
		case "vcs.modified":
			b.state = map[string]string{"true": "dirty", "false": "clean"}[s.Value]
		}
	}
	return b
}

// versionForm is the form in which -version prints the version; empty if it does not.
type versionForm string

const (
	shortVersion versionForm = "true"
	rawVersion   versionForm = "raw"
)

// UnmarshalText sets the form from the value of the flag.
func (f *versionForm) UnmarshalText(text []byte) error {
	on, err := strconv.ParseBool(string(text))
	switch {
	case string(text) == string(rawVersion):
		*f = rawVersion
	case err != nil:
		return errors.New("must be true, false or raw")
	case on:
		*f = shortVersion
	default:
		*f = ""
	}
	return nil
}

func (f versionForm) String() string { return cmp.Or(string(f), "false") }

// text returns the version in the form; the raw one has the fields of kube-proxy's.
func (f *versionForm) text() string {
	if *f != rawVersion {
		return version()
	}
	b := readBuild()
	major, minor := majorMinor(b.version)
	return fmt.Sprintf("version.Info{Major:%q, Minor:%q, GitVersion:%q, GitCommit:%q, GitTreeState:%q, BuildDate:%q, GoVersion:%q, Compiler:%q, Platform:%q}",
		major, minor, b.version, b.commit, b.state, b.time, runtime.Version(), runtime.Compiler, runtime.GOOS+"/"+runtime.GOARCH)
}

// version returns the version of the module that the program was built from, and of Go.
func version() string {
	b := readBuild()
	return fmt.Sprintf("kubeproxy %s %s %s", b.path, b.version, runtime.Version())
}

// majorMinor returns the first two numbers of a version; nothing if it has none.
func majorMinor(version string) (major, minor string) {
	numbers, ok := strings.CutPrefix(version, "v")
	if !ok {
		return "", ""
	}
	major, rest, _ := strings.Cut(numbers, ".")
	minor, _, _ = strings.Cut(rest, ".")
	return major, minor
}

// registerBuild registers the metrics about the program: what it was built from, and, for the process, the feature
// gates that it acts on. Labels are those of kube-proxy's metrics. The build has a name of its own, since alerts
// compare kubernetes_build_info among the components of a cluster.
func (c *config) registerBuild(registry prometheus.Registerer) error {
	b := readBuild()
	major, minor := majorMinor(b.version)
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vipkit_build_info",
		Help: "What this program was built from: the value is 1, and the labels have the version of its module and of Go.",
		ConstLabels: prometheus.Labels{
			"major": major, "minor": minor, "git_version": b.version, "git_commit": b.commit, "git_tree_state": b.state, "build_date": b.time,
			"go_version": runtime.Version(), "compiler": runtime.Compiler, "platform": runtime.GOOS + "/" + runtime.GOARCH,
		},
	})
	info.Set(1)
	if err := registry.Register(info); err != nil {
		return err
	}
	f, err := newGates(c.FeatureGates)
	f.AddMetrics()
	return err
}
