package iptables

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/proxy"
)

// programs are the two programs that read and write the tables of a family.
type programs struct {
	saver, restorer string
	process         process
	wait            string // seconds
	// flavour is never Default.
	flavour Flavour
	// registry is where the legacy kernel lists the tables of the family.
	registry string
}

// findPrograms finds the programs of a flavour.
func findPrograms(ctx context.Context, o *Options, family v1.IPFamily, at *place) (programs, error) {
	stem, registry := "iptables", "ip_tables_names"
	if family == v1.IPv6Protocol {
		stem, registry = "ip6tables", "ip6_tables_names"
	}
	guarded := stem + " " + newNames(o.Identity.Name).prefix
	if o.Flavour != Default {
		stem += "-" + string(o.Flavour)
	}
	p := programs{
		process: process{place: at, guard: newGuard(at, guarded, o.LockWait)},
		wait:    strconv.Itoa(int(o.LockWait / time.Second)),
		flavour: o.Flavour, registry: registry,
	}
	for into, name := range map[*string]string{&p.saver: stem + "-save", &p.restorer: stem + "-restore"} {
		path, err := lookUp(name)
		if err != nil {
			return p, fmt.Errorf("iptables: %w: the program %s is missing: install the package iptables, version 1.8 or later: %w",
				proxy.ErrUnsupported, name, err)
		}
		*into = path
	}
	if p.flavour != Default {
		return p, nil
	}
	var err error
	p.flavour, err = p.ask(ctx)
	return p, err
}

// lookUp finds a program also where the path of users does not lead.
func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, folder := range [...]string{"/usr/sbin/", "/sbin/"} {
		if err == nil {
			return path, nil
		}
		if there, found := exec.LookPath(folder + name); found == nil {
			return there, nil
		}
	}
	return "", err
}

// find reads what there is of an identity. Of the legacy flavour, it reads its own
// tables alone. Of the other one, it has all printed by one program, as each looks at
// all, unless that fails: others may have tables that iptables cannot print.
func (p *programs) find(ctx context.Context, n names, hidden map[chainRef]hiddenRules) (found, dead saved, err error) {
	if p.flavour == NFT {
		found, dead, err := p.look(ctx, newListing(n, hidden), []string{})
		if _, stopped := errors.AsType[*stopError](err); !stopped {
			return found, dead, err
		}
	}
	tables, err := p.tables()
	if err != nil {
		return nil, nil, fmt.Errorf("iptables: looking for tables: %w", err)
	}
	var each [][]string
	for _, t := range tables {
		each = append(each, []string{"-t", t.String()})
	}
	return p.look(ctx, newListing(n, hidden), each...)
}

// look reads what programs with some arguments print, one after the other.
func (p *programs) look(ctx context.Context, l *listing, arguments ...[]string) (found, dead saved, err error) {
	for _, args := range arguments {
		if _, err := p.process.run(ctx, program{path: p.saver, args: args, out: l}); err != nil {
			return nil, nil, err
		}
	}
	if found, dead, err = l.end(); err != nil {
		return nil, nil, fmt.Errorf("iptables: reading what %s says: %w", p.saver, err)
	}
	return found, dead, nil
}

// tables gives those that exist, as far as there is a difference: the legacy kernel
// makes a table when somebody asks for it.
func (p *programs) tables() (exist []table, err error) {
	all := []table{nat, filter}
	if p.flavour != Legacy {
		return all, nil
	}
	var names []byte
	err = p.process.place.do(func() (err error) {
		names, err = os.ReadFile("/proc/thread-self/net/" + p.registry)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for name := range strings.FieldsSeq(string(names)) {
		if t, ok := tableNamed(name); ok {
			exist = append(exist, t)
		}
	}
	return exist, nil
}

// restore carries out a script.
func (p *programs) restore(ctx context.Context, script []byte) error {
	ran, err := p.process.run(ctx, program{
		path: p.restorer, args: []string{"--noflush", "-w", p.wait}, in: newInput(script),
	})
	if err != nil && ran && ctx.Err() != nil {
		return fmt.Errorf("%w: iptables was stopped on its way: %w", proxy.ErrDataplaneLost, err)
	}
	return err
}

// ask asks a program for its flavour.
func (p *programs) ask(ctx context.Context) (Flavour, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var version tail
	_, err := (&process{place: p.process.place}).run(ctx, program{path: p.restorer, args: []string{"--version"}, out: &version})
	switch {
	case err != nil:
		return Default, fmt.Errorf("iptables: %s --version: %w", p.restorer, err)
	case strings.Contains(string(version.kept), "nf_tables"):
		return NFT, nil
	}
	return Legacy, nil
}
