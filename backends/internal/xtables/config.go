package xtables

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/proxy"
)

// Flavour is a kind of iptables.
type Flavour string

// The flavours.
const (
	// Default is the flavour of the programs with plain names on this system.
	Default Flavour = ""
	// Legacy is the original flavour, with tables of its own in the kernel.
	Legacy Flavour = "legacy"
	// NFT keeps its tables in nf_tables.
	NFT Flavour = "nft"
)

// DefaultLockWait is the default of [Options.LockWait].
const DefaultLockWait = 5 * time.Second

// ErrLocked reports that another program held the xtables lock for longer than
// [Options.LockWait]. An Apply of changes has changed nothing then, unless the error is a
// [proxy.ErrDataplaneLost], too. An Apply from the zero Snapshot may have written some tables. Another try
// may succeed.
var ErrLocked = errors.New("another program holds the xtables lock")

// Options say which programs run, and how long they wait.
type Options struct {
	// Flavour selects the programs; empty means [Default].
	Flavour Flavour
	// LockWait is how long to wait, in whole seconds, for other programs that hold the
	// xtables lock; zero means [DefaultLockWait].
	LockWait time.Duration
}

// Complete fills in defaults, or returns an error for invalid options.
func (o Options) Complete() (Options, error) {
	if !slices.Contains([]Flavour{Default, Legacy, NFT}, o.Flavour) {
		return o, fmt.Errorf("iptables: unknown flavour %q", o.Flavour)
	}
	if o.LockWait == 0 {
		o.LockWait = DefaultLockWait
	}
	if o.LockWait < time.Second || o.LockWait.Seconds() > math.MaxInt32 {
		return o, fmt.Errorf("iptables: Options.LockWait %v must be at least 1s and at most %d s", o.LockWait, math.MaxInt32)
	}
	return o, nil
}

// Config is what a backend needs.
type Config struct {
	// Options must be complete.
	Options Options
	Names   Names
	// Families are the IP families that are served, at least one.
	Families []Family
	// Around, if it is not nil, is called with each run of iptables-restore, which it may call or not. It
	// makes faults in tests.
	Around func(commit func() error) error
}

// Family has the rules of one IP family. Functions may be nil, except for Render.
type Family struct {
	Family v1.IPFamily
	// Render returns the chains and rules. A rule is text as iptables-save prints it; every
	// full apply would write another one again. A rule of one of the kernel's own chains,
	// which need no object, jumps to a chain of the consumer, and has only matches of a
	// connection's state (-m conntrack --ctstate) and comments that begin with "kubernetes ".
	Render backends.Render[Key, string]
	// Extensions are named in errors if they are missing. Sets that their rules name must exist.
	Extensions []Extension
	// Facts is called before each full Apply, in the network namespace, and returns settings on which
	// rules depend, as Facts of [backends.TargetAbilities] does.
	Facts func() (any, error)
	// CheckLimits is as in [proxy.Abilities], for service ports of the family.
	CheckLimits func(*proxy.ServicePort) []*proxy.Problem
}
