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
	apiversion "k8s.io/apimachinery/pkg/version"
)

// readBuild returns the path of the module that the program was built from, and its version, in the form that
// components of Kubernetes have for theirs. Go has recorded it.
func readBuild() (path string, v apiversion.Info) {
	v = apiversion.Info{GitVersion: "(devel)", GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", v
	}
	v.GitVersion = cmp.Or(info.Main.Version, v.GitVersion)
	if numbers := strings.SplitN(v.GitVersion, ".", 3); len(numbers) == 3 {
		v.Major, v.Minor = strings.TrimPrefix(numbers[0], "v"), numbers[1]
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.GitCommit = s.Value
		case "vcs.time":
			v.BuildDate = s.Value
		case "vcs.modified":
			v.GitTreeState = map[string]string{"true": "dirty", "false": "clean"}[s.Value]
		}
	}
	return info.Main.Path, v
}

// versionForm is the form in which -version prints the version; empty if it does not.
type versionForm string

const (
	shortVersion versionForm = "true"
	rawVersion   versionForm = "raw"
)

// Set implements [pflag.Value].
func (f *versionForm) Set(text string) error {
	on, err := strconv.ParseBool(text)
	switch {
	case text == string(rawVersion):
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

// String implements [pflag.Value].
func (f *versionForm) String() string { return cmp.Or(string(*f), "false") }

// Type implements [pflag.Value].
func (*versionForm) Type() string { return "version" }

// text returns the version in the form; the raw one is as kube-proxy's.
func (f *versionForm) text() string {
	if *f != rawVersion {
		return version()
	}
	_, v := readBuild()
	return fmt.Sprintf("%#v", v)
}

// version returns the version of the module that the program was built from, and of Go.
func version() string {
	path, v := readBuild()
	return fmt.Sprintf("kubeproxy %s %s %s", path, v.GitVersion, v.GoVersion)
}

// registerBuild registers the metrics about the program: what it was built from, and, for the process, the feature
// gates that it acts on. The labels are the labels of kube-proxy's metrics. The build has a name of its own, since alerts
// compare kubernetes_build_info among the components of a cluster.
func (c *config) registerBuild(registry prometheus.Registerer) error {
	_, v := readBuild()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vipkit_build_info",
		Help: "What this program was built from: the value is 1, and the labels have the version of its module and of Go.",
		ConstLabels: prometheus.Labels{
			"major": v.Major, "minor": v.Minor, "git_version": v.GitVersion, "git_commit": v.GitCommit, "git_tree_state": v.GitTreeState, "build_date": v.BuildDate,
			"go_version": v.GoVersion, "compiler": v.Compiler, "platform": v.Platform,
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
