package iptables

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/xtables"
)

// Options configure a backend. The zero value is usable.
type Options struct {
	// Identity names the chains and the bit of the packet mark: the name
	// "vipkit" makes chains VIPKIT-SERVICES, VIPKIT-SVC-... A name of more than
	// seven characters is shortened to two and a hash, since chain names are
	// short. With the name "kube" the chains have the names that kube-proxy uses;
	// then kube-proxy must not run on the node, and the backend adopts the chains
	// that it left. Priority has no effect: the backend adds its jumps at the
	// front of the kernel's own chains.
	Identity backends.Identity
	// Families are the IP families to serve; empty means both.
	Families []v1.IPFamily
	// Flavour selects the programs for one of the two kinds of iptables that
	// kernels have; empty means [Default].
	Flavour Flavour
	// LockWait is how long to wait, in whole seconds, for other programs that hold
	// the xtables lock; zero means [DefaultLockWait]. After that an Apply fails with
	// [ErrLocked] and nothing is changed.
	LockWait time.Duration
}

// DefaultLockWait is the default of Options.LockWait.
const DefaultLockWait = xtables.DefaultLockWait

// Flavour is a kind of iptables.
type Flavour string

// The flavours.
const (
	// Default is the flavour of the programs with plain names on this system:
	// iptables-restore and so on. Other programs on the node most likely use the
	// same.
	Default Flavour = ""
	// Legacy is the original flavour, with tables of its own in the kernel.
	Legacy Flavour = "legacy"
	// NFT keeps its tables in nf_tables.
	NFT Flavour = "nft"
)

// ErrLocked reports that another program held the xtables lock for longer than
// [Options.LockWait]. An Apply of changes has changed nothing then, unless the error is a
// [proxy.ErrDataplaneLost], too. An Apply from the zero Snapshot may have written some tables. Another try
// may succeed.
var ErrLocked = xtables.ErrLocked

// complete fills in defaults, or returns an error for invalid options.
func (o Options) complete() (Options, error) {
	identity, err := o.Identity.Complete(kinds.IPTablesNFT.Defaults())
	if err != nil {
		return o, fmt.Errorf("iptables: %w", err)
	}
	o.Identity = identity
	for _, f := range o.Families {
		if f != v1.IPv4Protocol && f != v1.IPv6Protocol {
			return o, fmt.Errorf("iptables: unknown IP family %q", f)
		}
	}
	if len(o.Families) == 0 {
		o.Families = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	}
	engine, err := xtables.Options{Flavour: xtables.Flavour(o.Flavour), LockWait: o.LockWait}.Complete()
	o.LockWait = engine.LockWait
	return o, err
}
