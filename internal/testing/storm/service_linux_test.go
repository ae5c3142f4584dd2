package storm

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/cluster"
	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/proxy"
)

// sourceRanges returns the lists of source ranges that Services may have. The first two overlap.
// Each client outside of the cluster is either in both or in neither.
func sourceRanges() [][]string {
	return [][]string{{"192.0.2.0/24"}, {"192.0.2.0/25"}, {"198.51.100.0/24", "10.6.0.0/16"}}
}

// familyOf returns the family of a Service: every third one has IPv6.
func familyOf(number int) v1.IPFamily {
	if number%3 == 2 {
		return v1.IPv6Protocol
	}
	return v1.IPv4Protocol
}

// objectsOf returns the Service with a number and its EndpointSlices.
func objectsOf(number int, s cluster.Sample) cluster.Objects {
	s.Number = number
	all := s.Objects()
	n := len(all.Slices) / 2
	if familyOf(number) == v1.IPv6Protocol {
		return cluster.Objects{Services: all.Services[1:], Slices: all.Slices[n:]}
	}
	return cluster.Objects{Services: all.Services[:1], Slices: all.Slices[:n]}
}

// frontendsOf returns all addresses that the Service with a number may have.
func frontendsOf(number int) []netip.AddrPort {
	s := cluster.Sample{Number: number}
	all := s.Frontends()
	if familyOf(number) == v1.IPv6Protocol {
		for i, a := range all {
			all[i] = netip.AddrPortFrom(cluster.IPv6Of(a.Addr()), a.Port())
		}
	}
	return all
}

// nodeAddrs returns the addresses of the node: the main one of each family, and
// secondary ones, which are not always in the Node object.
func nodeAddrs() []netip.Addr {
	return append(cluster.Hosts()[0].Addrs, cluster.SecondaryAddrs()...)
}

// nodeObject returns the Node in one of its four states.
func nodeObject(state int) *v1.Node {
	addrs := nodeAddrs()
	if state&1 == 0 {
		addrs = addrs[:2]
	}
	zone := map[bool]string{true: "a"}[state&2 != 0]
	return objects.Node(string(cluster.Node), zone, objects.Many(len(addrs), func(i int) string { return addrs[i].String() })...)
}

func trackerOptions() proxy.TrackerOptions {
	return proxy.TrackerOptions{
		NodeName: string(cluster.Node), NodePortAddresses: proxy.NodePortAddresses{All: true},
		LocalTraffic: proxy.LocalTraffic{Sources: cluster.PodRanges()},
		ServiceCIDRs: snapshots.Prefixes("10.96.0.0/16", "fd00:96::/112"),
	}
}

// change is a change of Services, by number, and of the Node. A nil sample deletes the
// Service.
type change struct {
	Services map[int]*cluster.Sample `json:"services,omitempty"`
	Node     *int                    `json:"node,omitempty"`
}

// inventory is a tracker to which changes are applied. Each agent has one, and so has the
// storm.
type inventory struct {
	tracker *proxy.ServiceChangeTracker
	// changing is held while a change is applied.
	changing sync.Mutex
	current  map[int]cluster.Objects // of each Service
}

func newInventory(o proxy.TrackerOptions) *inventory {
	return &inventory{tracker: proxy.NewServiceChangeTracker(o), current: map[int]cluster.Objects{}}
}

// Next implements [proxy.Source]. It returns no snapshot with only a part of a change, as the
// judge has no verdict for such a state.
func (i *inventory) Next(ctx context.Context, after proxy.Snapshot) (proxy.Snapshot, error) {
	if s, err := i.tracker.Next(ctx, after); err != nil {
		return s, err
	}
	i.changing.Lock()
	defer i.changing.Unlock()
	return i.tracker.Next(ctx, proxy.Snapshot{})
}

func (i *inventory) apply(c *change) {
	i.changing.Lock()
	defer i.changing.Unlock()
	if c.Node != nil {
		i.tracker.UpdateNode(nodeObject(*c.Node))
	}
	for _, number := range slices.Sorted(maps.Keys(c.Services)) {
		old := i.current[number]
		var next cluster.Objects
		if s := c.Services[number]; s != nil {
			next = objectsOf(number, *s)
		} else if len(old.Services) > 0 {
			i.tracker.DeleteService(nameOf(old.Services[0]))
		}
		next.HandTo(i.tracker)
		for n := len(next.Slices); n < len(old.Slices); n++ {
			i.tracker.DeleteEndpointSlice(nameOf(old.Slices[n]))
		}
		i.current[number] = next
	}
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
