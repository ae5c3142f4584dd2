package iptables

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
)

// Options say what a backend may call its own, and which programs it uses. The
// zero value is usable.
type Options struct {
	// Identity names the chains and the bit of the packet mark: the name
	// "vipkit" makes chains VIPKIT-SERVICES, VIPKIT-SVC-... A name of more than
	// seven characters is shortened to two and a hash, since chain names are
	// short. The name "kube" gives the chains the names that kube-proxy uses;
	// then kube-proxy must not run here, and what it left behind is taken
	// over. Priority means nothing here: the order of chains that belong to
	// one hook is that of the jumps to them, and the backend puts its jumps first.
	Identity backends.Identity
	// Families are the IP families to serve; empty means both.
	Families []v1.IPFamily
	// Flavour chooses between the programs for the two kinds of iptables that
	// kernels have; empty means [Default].
	Flavour Flavour
	// LockWait is how long to wait for other programs that hold the lock of
	// iptables, in whole seconds, and how long for what this backend has started
	// in an earlier process; zero means [DefaultLockWait]. After that an Apply
	// fails with [ErrLocked] and nothing is changed.
	LockWait time.Duration
	// AffinityClients is how many clients of one endpoint must be remembered
	// where a Service has session affinity. How many are, the parameter
	// ip_list_tot of the kernel's module xt_recent says when it is loaded: 100
	// unless somebody chose another number. Beyond that, the client that was
	// quiet the longest is forgotten. If the kernel remembers fewer than this,
	// service ports with affinity are refused rather than served by less than
	// was asked for. Zero accepts whatever the kernel has.
	AffinityClients uint32
}

// DefaultLockWait is how long the lock of iptables is waited for unless
// [Options] say otherwise.
const DefaultLockWait = 5 * time.Second

// Flavour is a kind of iptables.
type Flavour string

// The flavours.
const (
	// Default is what the plain names of the programs stand for on this
	// system: iptables-restore and so on. Other programs on the node most
	// likely use the same.
	Default Flavour = ""
	// Legacy is the original one, with tables of its own in the kernel.
	Legacy Flavour = "legacy"
	// NFT keeps its tables in nf_tables.
	NFT Flavour = "nft"
)

// ErrLocked marks that other programs held the lock of iptables for longer than
// [Options] allow to wait, or that a program which this backend has started before,
// in an earlier process, had not ended by then. Nothing was changed; another try may succeed.
var ErrLocked = errors.New("the lock of iptables is held by others")

// complete fills in defaults, or says what is wrong.
func (o Options) complete() (Options, error) {
	identity, err := o.Identity.Complete()
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
	if !slices.Contains([]Flavour{Default, Legacy, NFT}, o.Flavour) {
		return o, fmt.Errorf("iptables: unknown flavour %q", o.Flavour)
	}
	if o.LockWait == 0 {
		o.LockWait = DefaultLockWait
	}
	if o.LockWait < time.Second || o.LockWait.Seconds() > math.MaxInt32 {
		return o, fmt.Errorf("iptables: LockWait %v is less than a second, or endless", o.LockWait)
	}
	return o, nil
}
