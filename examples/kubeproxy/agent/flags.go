package agent

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/internal/nearest"
)

// config has all settings of the program.
type config struct {
	v1alpha1.KubeProxyConfiguration
	Options
	task
	parsed
	// text is the content of the configuration file; nil if it was not read.
	text []byte
	// warnings name what has no effect; notes say what is otherwise than in kube-proxy.
	warnings, notes []string
	// system is the operating system, as GOOS names it; openHNS, if not nil, opens the HNS in place of [openHNS].
	system  string
	openHNS func() (hnsClient, error)
	// followed has the newest configuration that was applied, if a file is followed.
	followed *atomic.Pointer[config]
	handlers *handlers
}

// inEffect returns the configuration with the changes of the file that were applied.
func (c *config) inEffect() *config {
	if c.followed == nil {
		return c
	}
	return c.followed.Load()
}

// task has the settings that only flags can set.
type task struct {
	configFile, writeTo, master string
	cleanup, initOnly           bool
	version                     versionForm
	// cleanupIPVS says that -cleanup removes what mode ipvs has programmed too.
	cleanupIPVS bool
	// healthzPort and metricsPort are the ports of addresses without one; 0 for no server.
	healthzPort, metricsPort int32
}

// newConfig returns the configuration without flags and file.
func newConfig(system string) *config {
	return &config{
		KubeProxyConfiguration: defaults(), system: system, handlers: &handlers{},
		Options: Options{DrainTimeout: ipvs.DefaultDrainTimeout},
		task:    task{cleanupIPVS: true, healthzPort: healthzPort, metricsPort: metricsPort},
	}
}

// readCommandLine reads the flags, and the file that they name unless c has its content. It has written its error to
// out, in one line for each wrong value, when it returns one.
func (c *config) readCommandLine(args []string, out io.Writer) (*config, error) {
	err := c.readArguments(args)
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		_, _ = fmt.Fprintln(out, err) // If it fails, the exit status still shows the error.
	}
	return c, err
}

// newFlags returns the flags of settings.
func newFlags(name string, settings []setting) *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SetNormalizeFunc(cliflag.WordSepNormalizeFunc) // as in kube-proxy
	f.SortFlags = false
	f.Usage = func() {}
	for i := range settings {
		if settings[i].flag != "" {
			settings[i].define(f)
		}
	}
	return f
}

// arguments are the values that flags have been given, by the name of the flag.
type arguments map[string][]string

// readArguments reads the flags and the file, and checks the result. Its error has a line for each wrong value.
func (c *config) readArguments(args []string) error {
	settings, given := c.settings(), arguments{}
	f := newFlags("kubeproxy", settings)
	err := f.ParseAll(withTwoDashes(args), func(x *pflag.Flag, value string) error {
		given[x.Name] = append(given[x.Name], value)
		return nil
	})
	if err != nil {
		return explain(err, settings)
	}
	var errs []error
	if text := strings.Join(f.Args(), " "); strings.TrimSpace(text) != "" { // Empty ones are as in kube-proxy, for variables without value.
		errs = append(errs, fmt.Errorf("unexpected argument %q", strings.TrimSpace(text)))
	}
	// These two say what becomes of the others.
	for _, value := range given["version"] {
		_ = c.version.Set(value) // A wrong one is reported below.
	}
	for _, value := range given["config"] {
		c.configFile = value
	}
	if c.configFile != "" && c.version == "" {
		wrong, err := c.readFile(settings)
		errs = append(errs, wrong...)
		if err != nil { // Without the file, a check of the others would mislead.
			return errors.Join(append(append(errs, c.set(f, given, settings)...), err)...)
		}
	}
	errs = append(errs, c.set(f, given, settings)...)
	switch {
	case c.version != "":
		return errors.Join(errs...)
	case c.configFile == "":
		of := &c.IPTables // The flags of these fields are for both modes.
		c.NFTables.MasqueradeAll, c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod = of.MasqueradeAll, of.SyncPeriod, of.MinSyncPeriod
	}
	if c.cleanup && c.initOnly {
		errs = append(errs, errors.New("-cleanup and -init-only exclude each other"))
	}
	errs = append(errs, c.checkSystem(given, settings)...)
	return errors.Join(append(errs, c.validate(settings))...)
}

// set sets the flags that are given. A file counts more than most flags: their values are checked, but not set.
func (c *config) set(f *pflag.FlagSet, given arguments, settings []setting) (errs []error) {
	unused := newFlags("", newConfig(c.system).settings())
	for _, s := range settings {
		into := f
		hasFile := c.configFile != "" && !s.traits.has(isIgnored|beatsFile) && (s.field != "" || s.traits.has(yieldsToFile))
		if hasFile {
			into = unused
		}
		for _, value := range given[s.flag] {
			if err := into.Lookup(s.flag).Value.Set(value); err != nil {
				errs = append(errs, fmt.Errorf("-%s: %.60q: %w", s.flag, value, wants(s.into, err)))
			}
		}
		switch {
		case given[s.flag] == nil:
		case hasFile:
			c.warnings = append(c.warnings, fmt.Sprintf("flag -%s is ignored because of -config", s.flag))
		case s.traits.has(isIgnored) && f.Lookup(s.flag).Value.String() != s.usual:
			c.warnings = append(c.warnings, fmt.Sprintf("flag -%s is ignored", s.flag))
		}
	}
	return errs
}

// withTwoDashes returns arguments in which each long name of a flag has two dashes.
func withTwoDashes(args []string) []string {
	out := slices.Clone(args)
	for i, arg := range args {
		switch arg {
		case "--":
			return out
		case "--h":
			out[i] = "-h"
		}
		isLong := len(arg) > 2 && arg[0] == '-' && (arg[1] >= 'a' && arg[1] <= 'z') && arg[2] != '='
		if isLong && (arg[1] != 'v' || arg[2] < '0' || arg[2] > '9') {
			out[i] = "-" + arg
		}
	}
	return out
}

// explain adds the nearest known flag to the error for an unknown one.
func explain(err error, settings []setting) error {
	unknown, is := errors.AsType[*pflag.NotExistError](err)
	if !is {
		return err
	}
	name := strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-")
	if name == "ipvs-drain-services" {
		return errors.New("flag -ipvs-drain-services is gone: remove it, since a deleted Service ends its connections as in kube-proxy; -ipvs-drain-timeout is for endpoints")
	}
	var known []string
	for _, s := range settings {
		if s.flag != "" {
			known = append(known, s.flag)
		}
	}
	if like, ok := nearest.Name(name, known...); ok {
		return fmt.Errorf("%w; did you mean --%s? -help lists all", err, like)
	}
	return fmt.Errorf("%w; -help lists all", err)
}

// writeHelp writes a sentence about each flag.
func writeHelp(out io.Writer) {
	var text strings.Builder
	text.WriteString("kubeproxy serves Kubernetes Services on a node, in place of kube-proxy.\n")
	for _, g := range newConfig(runtime.GOOS).groups() {
		if f := newFlags(g.title, g.settings); f.HasFlags() {
			fmt.Fprintf(&text, "\n%s:\n%s", g.title, f.FlagUsages())
		}
	}
	_, _ = io.WriteString(out, text.String()) // If it fails, nobody reads the help.
}
