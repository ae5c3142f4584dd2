package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/internal/kernel/legacytables"
	"github.com/vipkit/vipkit/internal/kernel/netns"
	"github.com/vipkit/vipkit/proxy"
)

// programs are the two programs that read and write the tables of a family.
type programs struct {
	saver, restorer string
	namespace       *netns.NS
	wait            string // seconds
	// flavour is never Default.
	flavour Flavour
	family  v1.IPFamily
}

// findPrograms finds the programs of a flavour.
func findPrograms(ctx context.Context, c *Config, family v1.IPFamily, at *netns.NS) (programs, error) {
	stem := "iptables"
	if family == v1.IPv6Protocol {
		stem = "ip6tables"
	}
	if c.Options.Flavour != Default {
		stem += "-" + string(c.Options.Flavour)
	}
	p := programs{
		namespace: at,
		wait:      strconv.Itoa(int(c.Options.LockWait / time.Second)),
		flavour:   c.Options.Flavour, family: family,
	}
	for into, name := range map[*string]string{&p.saver: stem + "-save", &p.restorer: stem + "-restore"} {
		path, err := LookUp(name)
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
	p.flavour, err = p.readFlavour(ctx)
	return p, err
}

// LookUp finds a program in PATH, or in the directories for administrators.
func LookUp(name string) (string, error) {
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

// find reads the chains and rules of an identity. In the flavour nft, one program prints all
// tables, because it reads all of them anyway. In the legacy flavour, and if that program
// fails because of a foreign table, one program prints each table in use.
func (p *programs) find(ctx context.Context, n Names) (*existing, error) {
	if p.flavour == NFT {
		e, err := p.list(ctx, newListing(n), []string{})
		if _, stopped := errors.AsType[*stopError](err); !stopped {
			return e, err
		}
	}
	tables := n.tables()
	if p.flavour == Legacy { // the kernel would make a missing table
		existing, err := p.sizes(n)
		if err != nil {
			return nil, fmt.Errorf("iptables: finding tables: %w", err)
		}
		tables = slices.Sorted(maps.Keys(existing))
	}
	var each [][]string
	for _, t := range tables {
		each = append(each, []string{"-t", t.String()})
	}
	return p.list(ctx, newListing(n), each...)
}

// list runs iptables-save once for each list of arguments, and parses the output.
func (p *programs) list(ctx context.Context, l *listing, arguments ...[]string) (*existing, error) {
	for _, args := range arguments {
		_, err := p.run(ctx, nil, l, p.saver, args...)
		if isRefusal(err) && strings.Contains(err.Error(), "Parsing nftables rule failed") {
			err = fmt.Errorf("%w: %w", errIncompatible, err)
		}
		if err != nil {
			return nil, err
		}
	}
	e, err := l.end()
	if err != nil {
		return nil, fmt.Errorf("iptables: parsing the output of %s: %w", p.saver, err)
	}
	return e, nil
}

// sizes returns the tables of the legacy flavour that exist.
func (p *programs) sizes(n Names) (map[Table]legacytables.Info, error) {
	all := map[Table]legacytables.Info{}
	return all, p.namespace.Do(func() error {
		existing, err := legacytables.Sizes(p.family)
		for name, info := range existing {
			if t, isUsed := n.tableNamed(name); isUsed {
				all[t] = info
			}
		}
		return err
	})
}

// restore runs a script.
func (p *programs) restore(ctx context.Context, script []byte) error {
	ran, err := p.run(ctx, script, nil, p.restorer, "--noflush", "-w", p.wait)
	if err != nil && ran && ctx.Err() != nil {
		return fmt.Errorf("%w: iptables-restore was killed: %w", proxy.ErrDataplaneLost, err)
	}
	return err
}

// readFlavour runs a program to read its flavour.
func (p *programs) readFlavour(ctx context.Context) (Flavour, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var version bytes.Buffer
	_, err := p.run(ctx, nil, &version, p.restorer, "--version")
	switch {
	case err != nil:
		return Default, fmt.Errorf("iptables: %s --version: %w", p.restorer, err)
	case strings.Contains(version.String(), "nf_tables"):
		return NFT, nil
	}
	return Legacy, nil
}
