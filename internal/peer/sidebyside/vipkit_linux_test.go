package sidebyside

import (
	"context"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/vipkit/vipkit/backends/iptables"
	"github.com/vipkit/vipkit/backends/nftables"
	"github.com/vipkit/vipkit/proxy"
)

// vipkit calls a backend of this repository like a Runner, but without its pauses.
type vipkit struct {
	tracker *proxy.ServiceChangeTracker
	backend proxy.Backend
	applied proxy.Snapshot
	ended   context.Context
}

func newNFTables() (dataplane, error) {
	b, err := nftables.New(nftables.Options{Families: []v1.IPFamily{v1.IPv4Protocol}})
	return newVipkit(b), err
}

func newIPTables(flavour iptables.Flavour) (dataplane, error) {
	b, err := iptables.New(iptables.Options{Families: []v1.IPFamily{v1.IPv4Protocol}, Flavour: flavour})
	return newVipkit(b), err
}

func newVipkit(b proxy.Backend) *vipkit {
	options := proxy.TrackerOptions{
		NodeName:      nodeName,
		NodeAddresses: []netip.Addr{netip.MustParseAddr(nodeIP)},
		LocalTraffic:  proxy.LocalTraffic{Sources: []netip.Prefix{netip.MustParsePrefix(podRange)}},
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	return &vipkit{tracker: proxy.NewServiceChangeTracker(options), backend: b, ended: ended}
}

func (v *vipkit) load(w *world) error {
	for _, s := range w.services {
		v.tracker.UpdateService(s)
	}
	for _, s := range w.slices {
		v.tracker.UpdateEndpointSlice(s)
	}
	v.tracker.Synced()
	return v.sync()
}

func (v *vipkit) update(_, now *discoveryv1.EndpointSlice) error {
	v.tracker.UpdateEndpointSlice(now)
	return v.sync()
}

func (v *vipkit) add(s *v1.Service, slice *discoveryv1.EndpointSlice) error {
	v.tracker.UpdateService(s)
	v.tracker.UpdateEndpointSlice(slice)
	return v.sync()
}

// sync applies the newest snapshot. If there is none, nothing has changed, and a Runner would
// wait.
func (v *vipkit) sync() error {
	next, err := v.tracker.Next(v.ended, v.applied)
	if err != nil {
		return nil //nolint:nilerr // the context has ended so that Next need not wait
	}
	if err := v.backend.Apply(context.Background(), v.applied, next); err != nil {
		return err
	}
	v.applied = next
	return nil
}
