package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/xtables"
	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/ipvs"
	"github.com/vipkit/vipkit/proxy"
)

// AdoptKubeProxy gives the virtual servers of kube-proxy's mode ipvs to the backend of these
// options, but not those at addresses of the excluded ranges: the backend then keeps them,
// with their connections, or removes them, as its first Apply needs. It must be called before
// that, and kube-proxy must not run any more. Its chains, its sets and the device kube-ipvs0 stay
// until [CleanupKubeProxy].
//
// AdoptKubeProxy needs what [New] needs, in the network namespace of the calling thread, and
// fails with [proxy.ErrUnsupported] without it. Of the options, Identity and Families have an
// effect: virtual servers of other families stay kube-proxy's. If the first Apply would fail with
// [proxy.ErrUnsupported], AdoptKubeProxy does, and all of them stay kube-proxy's.
func AdoptKubeProxy(ctx context.Context, o Options, exclude []netip.Prefix) error {
	return withKubeProxy(o, ipvs.Open, "adopt virtual servers of kube-proxy", func(k kubeProxy) error { return k.adopt(ctx, exclude) })
}

// CleanupKubeProxy removes what kube-proxy's mode ipvs has left: virtual servers, but not those
// at addresses of the excluded ranges nor those of backends, the device kube-ipvs0, sets, and
// chains that its mode iptables does not have. kube-proxy must not run any more, and another
// backend must serve.
//
// Virtual servers with open TCP connections get no new ones and stay until these have ended, for
// Options.DrainTimeout at most; as long as there are some, CleanupKubeProxy fails with an error
// that says so, and is to be called again.
//
// CleanupKubeProxy needs what [Cleanup] needs, in the network namespace of the calling thread, and
// fails with [proxy.ErrUnsupported] without it. Beside DrainTimeout, these options have an effect:
// Families, whose chains it removes, of both flavours of iptables, and LockWait. Flavour, Identity,
// Scheduler, StrictARP, TCPTimeout, TCPFinTimeout and UDPTimeout have none.
//
// With the identity "kube" the objects of the backend have the names of kube-proxy's: CleanupKubeProxy
// refuses that.
func CleanupKubeProxy(ctx context.Context, o Options, exclude []netip.Prefix) error {
	return withKubeProxy(o, openIfLoaded, "remove what kube-proxy has left", func(k kubeProxy) error {
		if k.prefix == kubeProxyPrefix {
			return fmt.Errorf("identity %q: the objects of the backend have the same names: run kube-proxy --cleanup before the backend starts", k.options.Identity.Name)
		}
		return k.cleanUp(ctx, exclude)
	})
}

// kubeProxy is a backend that never applies anything.
type kubeProxy struct{ *backend }

// withKubeProxy calls do with a backend, and says in errors what was to be done.
func withKubeProxy(o Options, open func() (*ipvs.Conn, error), what string, do func(kubeProxy) error) error {
	b, err := newBackendOn(o, open)
	if err != nil {
		return err
	}
	if err := errors.Join(do(kubeProxy{b}), b.Close()); err != nil {
		return fmt.Errorf("ipvs: %s: %w", what, err)
	}
	return nil
}

func (k kubeProxy) adopt(ctx context.Context, exclude []netip.Prefix) error {
	servers, err := k.left(exclude)
	if err != nil || len(servers) == 0 {
		return err
	}
	if err := k.checkNode(ctx); err != nil {
		return err
	}
	var list []ipvs.SetOp
	for i := range servers {
		at := key{protocol: servers[i].Key.Protocol, addr: servers[i].Key.Addr}
		if n, serves := k.target.names[ipaddr.FamilyOf(at.addr.Addr())]; serves {
			list = append(list, ipvs.SetOp{Set: n.set(setServers), Entry: entryOf(&at)})
		}
	}
	failed, err := k.target.sets.Do(list)
	if err == nil && len(failed) > 0 {
		err = &failed[0]
	}
	return err
}

func (k kubeProxy) cleanUp(ctx context.Context, exclude []netip.Prefix) error {
	if err := k.removeRules(ctx); err != nil {
		return err
	}
	servers, err := k.left(exclude)
	if err != nil {
		return err
	}
	open, err := k.end(ctx, servers)
	switch {
	case err != nil:
		return err
	case open > 0:
		return fmt.Errorf("%w to %d virtual servers of kube-proxy", ErrDraining, open)
	}
	errs := []error{k.device().remove()}
	for _, name := range kubeProxySets() {
		errs = append(errs, k.target.sets.Destroy(name))
	}
	return errors.Join(errs...)
}

// kubeProxyPrefix is that of the names of kube-proxy's objects.
const kubeProxyPrefix = "KUBE-"

func (k kubeProxy) device() *device {
	return &device{name: "kube-" + ipaddr.ServiceDeviceSuffix, handle: k.target.device.handle}
}

// kubeProxyPort is a node port.
type kubeProxyPort struct {
	family   v1.IPFamily
	protocol uint8
	port     uint16
}

func kubeProxyFamilies() []v1.IPFamily { return []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} }

// kubeProxyNodePorts returns the names of kube-proxy's sets of node ports, with what the entries
// of a set have in common.
func kubeProxyNodePorts() map[string]kubeProxyPort {
	all := map[string]kubeProxyPort{}
	for _, f := range kubeProxyFamilies() {
		n := newNames(kubeProxyPrefix, f)
		for _, base := range []string{"NODE-PORT-", "NODE-PORT-LOCAL-"} {
			all[n.named(base+"TCP")] = kubeProxyPort{family: f, protocol: ipaddr.TCP}
			all[n.named(base+"UDP")] = kubeProxyPort{family: f, protocol: ipaddr.UDP}
			all[n.named(base+"SCTP-HASH")] = kubeProxyPort{family: f, protocol: ipaddr.SCTP}
		}
	}
	return all
}

// kubeProxySets returns the names of all sets of kube-proxy.
func kubeProxySets() []string {
	all := slices.Sorted(maps.Keys(kubeProxyNodePorts()))
	for _, f := range kubeProxyFamilies() {
		for _, base := range []string{
			"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-LOCAL",
			"LOAD-BALANCER-FW", "LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
		} {
			all = append(all, newNames(kubeProxyPrefix, f).named(base))
		}
	}
	return all
}

// removeRules removes the chains that only kube-proxy's mode ipvs has, of each flavour: kube-proxy may
// have used another one than this backend. A node that does not support a flavour has no chains of it.
func (k kubeProxy) removeRules(ctx context.Context) error {
	var errs []error
	for _, f := range [...]Flavour{k.options.Flavour, Legacy, NFT} {
		err := k.removeRulesOf(ctx, f)
		if f != k.options.Flavour && errors.Is(err, proxy.ErrUnsupported) && !errors.Is(err, backends.ErrUnavailable) {
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (k kubeProxy) removeRulesOf(ctx context.Context, f Flavour) error {
	c := k.ruleset()
	c.Options.Flavour = f
	// Rules with a comment are of backend iptables, if its identity has the same prefix, as in the agent.
	c.Names = xtables.Names{Prefix: kubeProxyPrefix, Uncommented: true, Chains: map[xtables.Table][]string{
		xtables.NAT:    {"LOAD-BALANCER", "NODE-PORT"},
		xtables.Filter: {"NODE-PORT", "SOURCE-RANGES-FIREWALL", "IPVS-FILTER", "IPVS-OUT-FILTER"},
	}}
	rules, err := xtables.New(c)
	if err != nil {
		return err
	}
	return errors.Join(rules.Cleanup(ctx), rules.Close())
}

// left returns the virtual servers that kube-proxy has left.
func (k kubeProxy) left(exclude []netip.Prefix) ([]ipvs.Service, error) {
	d := k.device()
	l, err := d.find()
	if err != nil || l == nil || k.target.kernel == nil {
		return nil, err
	}
	d.index.Store(uint32(l.Attrs().Index))
	addresses, host, err := d.addresses()
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	ports, owned, err := k.readSets()
	if err != nil {
		return nil, err
	}
	servers, err := k.target.kernel.Services()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(servers, func(s ipvs.Service) bool {
		a := s.Key.Addr.Addr()
		ofKubeProxy := slices.Contains(addresses, a) || slices.Contains(host, a) && ports[kubeProxyPort{ipaddr.FamilyOf(a), s.Key.Protocol, s.Key.Addr.Port()}]
		return s.Key.Mark != 0 || !ofKubeProxy || owned[s.Key] || slices.ContainsFunc(exclude, func(p netip.Prefix) bool { return p.Contains(a) })
	}), nil
}

// readSets returns kube-proxy's node ports, and the virtual servers of backends of any identity.
func (k kubeProxy) readSets() (ports map[kubeProxyPort]bool, owned map[ipvs.ServiceKey]bool, err error) {
	ports, owned = map[kubeProxyPort]bool{}, map[ipvs.ServiceKey]bool{}
	all, err := k.target.sets.Names()
	if err != nil {
		return nil, nil, err
	}
	nodePorts := kubeProxyNodePorts()
	for _, name := range all {
		port, isNodePort := nodePorts[name]
		if !isNodePort && !strings.HasSuffix(name, "-"+setServers.base()) {
			continue
		}
		entries, err := k.target.sets.Entries(name)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range entries {
			if !isNodePort {
				owned[ipvs.ServiceKey{Protocol: e.Protocol, Addr: netip.AddrPortFrom(e.Addr, e.Port)}] = true
				continue
			}
			port.port = e.Port
			ports[port] = true
		}
	}
	return ports, owned, nil
}

// end removes virtual servers without open TCP connections, or whose time is over. The others
// get no new connections. It returns their number.
func (k kubeProxy) end(ctx context.Context, servers []ipvs.Service) (open int, err error) {
	var list []ipvs.Op
	for i := range servers {
		key := servers[i].Key
		real, err := k.target.kernel.Destinations(key)
		if err != nil {
			return 0, err
		}
		drain, busy := k.drain(key, real)
		if !busy || key.Protocol != ipaddr.TCP || k.target.drainer.timeout <= 0 {
			list = append(list, ipvs.DelService(key))
			continue
		}
		open++
		list = append(list, drain...)
	}
	if len(list) == 0 {
		return open, nil
	}
	failed, err := k.target.kernel.Do(ctx, list)
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, &failed[0])
	}
	return open, err
}

// drain returns what is needed so that the real servers of a virtual server get no new
// connections, and whether there are open ones that may go on.
func (k kubeProxy) drain(server ipvs.ServiceKey, real []ipvs.DestinationState) (needs []ipvs.Op, busy bool) {
	now := uptime()
	for i := range real {
		d := &real[i]
		begun := isDraining(d)
		busy = busy || d.Active > 0 && (!begun || d.Upper > now)
		if !begun {
			needs = append(needs, ipvs.SetDestination(server, ipvs.Destination{Addr: d.Addr, Forwarding: d.Forwarding, Upper: k.target.deadline()}))
		}
	}
	return needs, busy
}
