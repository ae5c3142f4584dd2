package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
)

// givenFlag is a flag of the command line.
type givenFlag struct{ name, text string }

// readCommandLine gives what the flags, and the file that they name, say. What is
// wrong with it has been written to out when it returns an error.
func readCommandLine(args []string, out io.Writer) (*config, error) {
	f := flag.NewFlagSet("kubeproxy", flag.ContinueOnError)
	f.SetOutput(out)
	var given []givenFlag
	for _, s := range defaults().settings() {
		if s.flag == "" || f.Lookup(s.flag) != nil {
			continue // some flags stand for two fields
		}
		take := func(text string) error {
			given = append(given, givenFlag{s.flag, text})
			return s.set(text) // which only shows whether it can be read
		}
		if _, isBool := s.into.(*bool); isBool || s.isBool {
			f.BoolFunc(s.flag, usage(s), take)
		} else {
			f.Func(s.flag, usage(s), take)
		}
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	c := defaults()
	err := c.complete(given, f.Args())
	if err != nil {
		_, _ = fmt.Fprintln(out, err) // Where that fails, the status still tells.
	}
	return c, err
}

func usage(s setting) string {
	switch {
	case s.into == nil:
		return "`ignored`"
	case s.field == "":
		return map[string]string{
			"config":    "`path` of a KubeProxyConfiguration; flags that stand for its fields are ignored then",
			"cleanup":   "remove all rules, then exit",
			"init-only": "do what takes more privileges than CAP_NET_ADMIN, then exit",
			"master":    "`URL` of the API server, in the place of the kubeconfig's",
		}[s.flag]
	}
	return "the `field` " + s.field + " of KubeProxyConfiguration"
}

// complete applies what was given, the file first.
func (c *config) complete(given []givenFlag, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	for _, g := range given {
		if g.name == "config" {
			c.task.configFile = g.text
		}
	}
	if c.task.configFile != "" {
		if err := c.readFile(c.task.configFile); err != nil {
			return err
		}
	}
	for _, g := range given {
		if err := c.apply(g); err != nil {
			return err
		}
	}
	c.notes = slices.Compact(c.notes) // some flags stand for two fields
	if c.task.cleanup && c.task.initOnly {
		return errors.New("-cleanup and -init-only exclude each other")
	}
	return nil
}

func (c *config) apply(g givenFlag) error {
	for _, s := range c.settings() {
		switch {
		case s.flag != g.name:
		case s.into == nil:
			c.note("flag -%s is ignored", g.name)
		case c.task.configFile != "" && !s.wins:
			c.note("flag -%s is ignored, since there is a file", g.name)
		default:
			if err := s.set(g.text); err != nil {
				return fmt.Errorf("flag -%s: %w", g.name, err)
			}
		}
	}
	return nil
}
