package ipvs

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/proxy"
)

// Options configure a backend. The zero value is usable.
type Options struct {
	// Identity names the dummy device, the sets and the chains, and the bit of connection marks:
	// the name "vipkit" makes the device vipkit-ipvs0 and the set VIPKIT-CLUSTER-IP. A name of
	// more than seven characters is shortened to two and a hash. With the name "kube" the
	// names are those that kube-proxy uses; then kube-proxy must not run on the node, and
	// "kube-proxy --cleanup" must have removed its sets, which differ.
	// Priority has no effect.
	Identity backends.Identity
	// Families are the IP families to serve; empty means both. What has been programmed for the
	// other family stays, but Cleanup removes the device with the addresses of both.
	Families []v1.IPFamily
	// Scheduler is the scheduler of Services without [SchedulerAnnotation], in the same form; empty
	// means "rr". Services with session affinity have "mh", if the kernel has it.
	Scheduler string
	// DrainTimeout is how long an endpoint that a Service has no more keeps its open TCP
	// connections; zero means [DefaultDrainTimeout], a negative duration ends them at once. Connections
	// to a Service that is deleted, or loses its last endpoint, end at once.
	DrainTimeout time.Duration
	// Flavour selects the kind of iptables for the constant rules; empty means that of the
	// programs with plain names.
	Flavour Flavour
	// LockWait is how long to wait, in whole seconds, for other programs that hold the xtables
	// lock; zero means 5 s.
	LockWait time.Duration
	// StrictARP sets net.ipv4.conf.all.arp_ignore to 1 and arp_announce to 2. The node then
	// answers ARP requests only for addresses of the interface that receives them; otherwise
	// also for addresses of Services, at the dummy device. Programs that let one node at a time
	// answer for a load balancer address, such as MetalLB, need it. In IPv6 it has no effect. Without
	// it, both settings stay as they are.
	StrictARP bool
	// TCPTimeout, TCPFinTimeout and UDPTimeout are after which time without packets, in whole
	// seconds, IPVS forgets TCP connections, TCP connections after a FIN, and UDP flows. Zero
	// keeps the kernel's setting.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
}

// DefaultDrainTimeout is the default of [Options.DrainTimeout]. Most connections end earlier.
const DefaultDrainTimeout = 15 * time.Minute

// Flavour is a kind of iptables.
type Flavour string

// The flavours.
const (
	// Legacy is the original flavour, with tables of its own in the kernel.
	Legacy Flavour = "legacy"
	// NFT keeps its tables in nf_tables.
	NFT Flavour = "nft"
)

// complete fills in defaults, or returns an error for invalid options.
func (o Options) complete() (Options, error) {
	var err error
	if o.Identity, err = o.Identity.Complete(kinds.IPVS.Defaults()); err != nil {
		return o, fmt.Errorf("ipvs: %w", err)
	}
	if strings.HasSuffix(o.Identity.Name, "-6") {
		return o, fmt.Errorf("ipvs: identity %q: another identity could have its sets for IPv6: want a name that does not end in -6", o.Identity.Name)
	}
	for _, f := range o.Families {
		if f != v1.IPv4Protocol && f != v1.IPv6Protocol {
			return o, fmt.Errorf("ipvs: unknown IP family %q", f)
		}
	}
	if len(o.Families) == 0 {
		o.Families = []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	}
	if o.Scheduler == "" {
		o.Scheduler = "rr"
	}
	if _, err := parseScheduler(o.Scheduler); err != nil {
		return o, fmt.Errorf("ipvs: Options.Scheduler: %w", err)
	}
	x, err := xtables.Options{Flavour: xtables.Flavour(o.Flavour), LockWait: o.LockWait}.Complete()
	if err != nil {
		return o, fmt.Errorf("ipvs: %w", err)
	}
	o.Flavour, o.LockWait = Flavour(x.Flavour), x.LockWait
	if o.DrainTimeout == 0 {
		o.DrainTimeout = DefaultDrainTimeout
	}
	return o, o.checkTimes()
}

// LongestTimeout is the longest timeout that every kernel takes: it counts up to 1,000 ticks a
// second in 31 bits.
const LongestTimeout = math.MaxInt32 / 1000 * time.Second

// longestDrain is half of what the upper threshold of a real server can have: that is the time at which
// draining ends, in seconds since the node was started.
const longestDrain = math.MaxInt32 / 2 * time.Second

// checkTimes returns an error for invalid durations.
func (o *Options) checkTimes() error {
	if o.DrainTimeout > longestDrain {
		return fmt.Errorf("ipvs: Options.DrainTimeout: %v is longer than %v", o.DrainTimeout, longestDrain)
	}
	for name, d := range map[string]time.Duration{"TCPTimeout": o.TCPTimeout, "TCPFinTimeout": o.TCPFinTimeout, "UDPTimeout": o.UDPTimeout} {
		if d < 0 || d%time.Second != 0 || d > LongestTimeout {
			return fmt.Errorf("ipvs: Options.%s: %v is not a number of whole seconds from 0 to %v", name, d, LongestTimeout)
		}
	}
	return nil
}

// needsForwarding reports whether the kernel must forward IPv4.
func (o *Options) needsForwarding() bool { return slices.Contains(o.Families, v1.IPv4Protocol) }

// limits returns what the dataplane honours only in part for a service port with the schedulers that the kernel has.
func (r *renderer) limits(available []string, port *proxy.ServicePort) (all []*proxy.Problem) {
	if !slices.Contains(r.options.Families, port.Name.Family) {
		return nil
	}
	problem := func(field string, err error) {
		all = append(all, &proxy.Problem{Kind: "Service", NamespacedName: port.Name.NamespacedName, Field: field, Reason: proxy.ServedWithLimits, Err: err})
	}
	if used, err := r.schedulerOf(available, port); err != nil {
		problem("metadata.annotations["+SchedulerAnnotation+"]", fmt.Errorf("%w; the Service is served by %q", err, used.scheduler))
	}
	if !port.Affinity.Enabled() || max(len(port.Cluster), len(port.Local)) < 2 {
		return all
	}
	if _, chosen := port.Annotations[SchedulerAnnotation]; !chosen && !slices.Contains(available, schedulerMH) {
		problem("spec.sessionAffinity", fmt.Errorf("a client keeps its endpoint at one address of one node only, since the IPVS scheduler %q is missing: "+
			"load the kernel module ip_vs_%[1]s and restart", schedulerMH))
	}
	if len(port.Frontends) < 2 {
		return all
	}
	problem("spec.sessionAffinity", errors.New("a client keeps its endpoint at each address of the Service separately: "+
		"after a change of the endpoints, connections to different addresses may reach different endpoints"))
	if port.ExternalLocal && len(port.Cluster) > 0 && len(port.Local) > 0 {
		problem("spec.sessionAffinity", errors.New("connections from pods and the node to external addresses and node ports "+
			"may reach another endpoint after a change of the endpoints, because externalTrafficPolicy is Local: use the ClusterIP inside the cluster"))
	}
	return all
}
