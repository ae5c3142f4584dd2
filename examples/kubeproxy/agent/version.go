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

// module is the module of this package.
const module = "github.com/vipkit/vipkit/examples/kubeproxy"

// readBuild returns the version of the module of this package, in the form that components of Kubernetes have for theirs.
func readBuild() apiversion.Info {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildOf(info)
}

// buildOf returns the version of the module of this package in a program. Go has recorded the commit of the program only:
// it is the commit of the module if the program is the command kubeproxy.
func buildOf(info *debug.BuildInfo) apiversion.Info {
	v := apiversion.Info{GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			v.GitVersion = m.Version
			if m.Replace != nil {
				v.GitVersion = m.Replace.Version
			}
		}
	}
	v.GitVersion = cmp.Or(v.GitVersion, "(devel)")
	if numbers := strings.SplitN(v.GitVersion, ".", 3); len(numbers) == 3 {
		v.Major, v.Minor = strings.TrimPrefix(numbers[0], "v"), numbers[1]
	}
	if info.Main.Path != module {
		return v
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
	return v
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
	if *f == rawVersion {
		return fmt.Sprintf("%#v", readBuild())
	}
	return version()
}

// version returns the version of the module of this package, and of Go.
func version() string {
	v := readBuild()
	return fmt.Sprintf("kubeproxy %s %s %s", module, v.GitVersion, v.GoVersion)
}

// registerBuild registers the metrics about the program: what it was built from, and, for the process, the feature
// gates that it acts on. The labels are the labels of kube-proxy's metrics. The build has a name of its own, since alerts
// compare kubernetes_build_info among the components of a cluster.
func (c *config) registerBuild(registry prometheus.Registerer) error {
	v := readBuild()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vipkit_build_info",
		Help: "What the agent was built from: the value is 1, and the labels have the version of its module and of Go.",
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
