package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vipkit/vipkit/backends/ipvs"
	"github.com/vipkit/vipkit/backends/userspace"
	"github.com/vipkit/vipkit/endpoints"
	"github.com/vipkit/vipkit/internal/nearest"
)

// config has all settings of the program.
type config struct {
	kubeProxyConfiguration
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
	// traffic adds metrics of each Service, if the mode counts.
	traffic bool
	serverPorts
	fallback endpoints.LocalFallback
	// drainTimeout is how long endpoints drain in mode ipvs.
	drainTimeout time.Duration
	// addAt says where and how mode userspace adds addresses on Windows.
	addAt userspace.AddressOptions
}

// serverPorts are the ports of addresses without one; 0 for no server.
type serverPorts struct{ healthzPort, metricsPort int }

// newConfig returns the configuration without flags and file.
func newConfig(system string) *config {
	return &config{kubeProxyConfiguration: defaults(), system: system, task: task{
		cleanupIPVS: true, drainTimeout: ipvs.DefaultDrainTimeout, serverPorts: serverPorts{healthzPort, metricsPort},
	}}
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
	f := flag.NewFlagSet("kubeproxy", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	settings := c.settings()
	for _, s := range settings {
		if s.flag != "" {
			s.define(f)
		}
	}
	err := f.Parse(normalize(args))
	for err == nil && f.NArg() > 0 && f.Arg(0) == "" { // As in kube-proxy, for variables without value.
		err = f.Parse(f.Args()[1:])
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
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

// define defines the flag of a setting.
func (s *setting) define(f *flag.FlagSet) {
	set := func(text string) error { return parse(s.into, text) }
	switch s.into.(type) {
	case *bool, *versionForm:
		f.BoolFunc(s.flag, s.help, set)
	default:
		f.Func(s.flag, s.help, set)
	}
}

// normalize returns arguments in the form of package flag. That of kube-proxy also has underscores in
// names, for dashes, and -v4 for -v=4.
func normalize(args []string) []string {
	out := slices.Clone(args)
	for i, arg := range args {
		if arg == "--" {
			break
		}
		name, value, hasValue := strings.Cut(arg, "=")
		switch {
		case len(arg) > 2 && arg[:2] == "-v" && '0' <= arg[2] && arg[2] <= '9':
			out[i] = "-v=" + arg[2:]
		case strings.HasPrefix(arg, "-"):
			out[i] = strings.ReplaceAll(name, "_", "-")
			if hasValue {
				out[i] += "=" + value
			}
		}
	}
	return out
}

// explain adds the nearest known flag to the error for an unknown one.
func (c *config) explain(err error, settings []setting) error {
	name, isUnknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !isUnknown {
		return err
	}
	if strings.TrimPrefix(name, "-") == "ipvs-drain-services" {
		return errors.New("flag -ipvs-drain-services is gone: remove it, since a deleted Service ends its connections as in kube-proxy; -ipvs-drain-timeout is for endpoints")
	}
	var known []string
	for _, s := range settings {
		if s.flag != "" {
			known = append(known, s.flag)
		}
	}
	if like, ok := nearest.Name(strings.TrimPrefix(name, "-"), known...); ok {
		return fmt.Errorf("%w; did you mean -%s? -help lists all", err, like)
	}
	return fmt.Errorf("%w; -help lists all", err)
}

// complete reads the file, if one is named, notes the flags that are ignored, and checks the result.
func (c *config) complete(f *flag.FlagSet, settings []setting) error {
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case c.version != "":
		return nil
	case c.cleanup && c.initOnly:
		return errors.New("-cleanup and -init-only exclude each other")
	}
	given := map[string]bool{}
	f.Visit(func(x *flag.Flag) { given[x.Name] = true })
	if c.configFile == "" {
		bit := c.NFTables.MasqueradeBit // which has no flag
		c.NFTables = c.IPTables
		c.NFTables.MasqueradeBit = bit
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
	flags := *c
	c.kubeProxyConfiguration = defaults()
	if err := c.readFile(settings); err != nil {
		return err
	}
	c.serverPorts = newConfig(c.system).serverPorts
	was := flags.settings()
	for i, s := range settings {
		switch {
		case !given[s.flag] || s.traits.has(isIgnored):
		case s.traits.has(beatsFile):
			if err := parse(s.into, fmt.Sprint(was[i].value())); err != nil {
				return err
			}
		case s.field != "" || s.traits.has(yieldsToFile):
			c.warnings = append(c.warnings, fmt.Sprintf("flag -%s is ignored because of -config", s.flag))
		}
	}
	return nil
}

// writeHelp writes a sentence about each flag.
func writeHelp(out io.Writer) {
	const intro = "kubeproxy serves Kubernetes Services on a node, in place of kube-proxy.\n"
	var text strings.Builder
	text.WriteString(intro)
	for _, g := range newConfig(runtime.GOOS).groups() {
		title := "\n" + g.title + ":\n"
		for _, s := range g.settings {
			if s.flag == "" {
				continue
			}
			usual := ""
			if x := cmp.Or(s.text(), s.usual); x != "" && x != "false" {
				usual = " Default: " + x + "."
			}
			fmt.Fprintf(&text, "%s  -%s%s\n    \t%s%s\n", title, s.flag, s.kind(), s.help, usual)
			title = ""
		}
	}
	_, _ = io.WriteString(out, text.String()) // If it fails, nobody reads the help.
}
