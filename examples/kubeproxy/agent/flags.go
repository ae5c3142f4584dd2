package agent

import (
	"errors"
	"fmt"
	"io"
	"reflect"
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
	// text is the content of the configuration file; nil if it was not read.
	text []byte
	// warnings name what has no effect; notes say what is otherwise than in kube-proxy.
	warnings, notes []string
	// system is the operating system, as GOOS names it; openHNS opens another HNS than
	// that of the machine.
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
	serverPorts
}

// serverPorts are the ports of addresses without one; 0 for no server.
type serverPorts struct{ healthzPort, metricsPort int }

// newConfig returns the configuration without flags and file.
func newConfig(system string) *config {
	return &config{
		KubeProxyConfiguration: defaults(), system: system, handlers: &handlers{},
		Options: Options{Extensions: Extensions{DrainTimeout: ipvs.DefaultDrainTimeout}},
		task:    task{cleanupIPVS: true, serverPorts: serverPorts{healthzPort, metricsPort}},
	}
}

// readCommandLine reads the flags and the file that they name. It has written its error to
// out, in one line for each, when it returns one.
func readCommandLine(args []string, out io.Writer) (*config, error) {
	return readCommandLineOn(runtime.GOOS, args, out)
}

// readCommandLineOn is readCommandLine on an operating system.
func readCommandLineOn(system string, args []string, out io.Writer) (*config, error) {
	return newConfig(system).readCommandLine(args, out)
}

// readCommandLine reads the flags, and the file that they name unless c has its content.
func (c *config) readCommandLine(args []string, out io.Writer) (*config, error) {
	f := pflag.NewFlagSet("kubeproxy", pflag.ContinueOnError)
	f.SetNormalizeFunc(cliflag.WordSepNormalizeFunc) // as in kube-proxy
	f.Usage = func() {}
	settings := c.settings()
	define(f, settings)
	err := f.Parse(withTwoDashes(args))
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return c, err
	case err != nil:
		err = c.explain(err, settings)
	default:
		err = c.complete(f, settings)
	}
	if err != nil {
		_, _ = fmt.Fprintln(out, err) // If it fails, the exit status still shows the error.
	}
	return c, err
}

// define defines the flags of settings.
func define(f *pflag.FlagSet, settings []setting) {
	f.SortFlags = false
	for i, s := range settings {
		if s.flag == "" {
			continue
		}
		var value pflag.Value = flagValue{&settings[i]}
		if gates, is := s.into.(*map[string]bool); is {
			value = cliflag.NewMapStringBool(gates)
		}
		x := f.VarPF(value, s.flag, map[string]string{"v": "v"}[s.flag], s.help)
		if value.Type() == "bool" {
			x.NoOptDefVal = "true"
		}
		if x.DefValue == "" {
			x.DefValue = s.usual
		}
	}
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
func (c *config) explain(err error, settings []setting) error {
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

// complete reads the file, if one is named, notes the flags that are ignored, and checks the result.
func (c *config) complete(f *pflag.FlagSet, settings []setting) error {
	switch {
	case strings.Join(f.Args(), "") != "": // Empty ones are as in kube-proxy, for variables without value.
		return fmt.Errorf("unexpected argument %q", strings.TrimSpace(strings.Join(f.Args(), " ")))
	case c.version != "":
		return nil
	case c.cleanup && c.initOnly:
		return errors.New("-cleanup and -init-only exclude each other")
	}
	given := map[string]bool{}
	f.Visit(func(x *pflag.Flag) { given[x.Name] = true })
	if c.configFile == "" {
		of := &c.IPTables // There is no flag of the bit for mode nftables.
		c.NFTables.MasqueradeAll, c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod = of.MasqueradeAll, of.SyncPeriod, of.MinSyncPeriod
	} else if err := c.readOverFlags(given, settings); err != nil {
		return err
	}
	for _, s := range settings {
		if given[s.flag] && s.traits.has(isIgnored) && fmt.Sprint(s.value()) != s.usual {
			c.warnings = append(c.warnings, fmt.Sprintf("flag -%s is ignored", s.flag))
		}
	}
	if err := c.checkSystem(given, settings); err != nil {
		return err
	}
	return c.validate(settings)
}

// readOverFlags reads the file, whose fields count more than most flags.
func (c *config) readOverFlags(given map[string]bool, settings []setting) error {
	var flags []reflect.Value
	for i, s := range newConfig(c.system).settings() {
		into := reflect.ValueOf(settings[i].into).Elem()
		flags = append(flags, reflect.ValueOf(into.Interface()))
		if !s.traits.has(isIgnored) && (s.field != "" || s.traits.has(yieldsToFile)) {
			into.Set(reflect.ValueOf(s.into).Elem())
		}
	}
	if err := c.readFile(settings); err != nil {
		return err
	}
	for i, s := range settings {
		switch {
		case !given[s.flag] || s.traits.has(isIgnored):
		case s.traits.has(beatsFile):
			reflect.ValueOf(s.into).Elem().Set(flags[i])
		case s.field != "" || s.traits.has(yieldsToFile):
			c.warnings = append(c.warnings, fmt.Sprintf("flag -%s is ignored because of -config", s.flag))
		}
	}
	return nil
}

// writeHelp writes a sentence about each flag.
func writeHelp(out io.Writer) {
	var text strings.Builder
	text.WriteString("kubeproxy serves Kubernetes Services on a node, in place of kube-proxy.\n")
	for _, g := range newConfig(runtime.GOOS).groups() {
		f := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		if define(f, g.settings); f.HasFlags() {
			fmt.Fprintf(&text, "\n%s:\n%s", g.title, f.FlagUsages())
		}
	}
	_, _ = io.WriteString(out, text.String()) // If it fails, nobody reads the help.
}
