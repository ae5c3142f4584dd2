package netfilter

import (
	"fmt"

	"github.com/vipkit/vipkit/backends/internal/nodecheck"
	"github.com/vipkit/vipkit/backends/userspace/internal/host"
	"github.com/vipkit/vipkit/proxy"
)

// checkNode returns the settings of the node that matter. Settings of forwarding and of bridges do
// not, since all connections end at sockets of the backend.
func (k *kernel) checkNode(s proxy.Snapshot) []*proxy.Problem {
	found := k.checkFamilies(s)
	var delivery nodecheck.Delivery
	if k.redirect {
		delivery = nodecheck.Delivery{Rule: nodecheck.Translated(), Port: k.Port}
	} else {
		found = append(found, nodecheck.Capture(s)...)
		mark := k.Identity.Mark
		delivery.Rule = nodecheck.Rule{
			NFT: fmt.Sprintf("meta mark & %#[1]x == %#[1]x accept", mark), IPTables: fmt.Sprintf("-m mark --mark %#[1]x/%#[1]x -j ACCEPT", mark),
		}
	}
	return append(found, nodecheck.Deliveries(s, delivery)...)
}

// checkFamilies returns a problem if Services have an IP family that the node cannot use.
func (k *kernel) checkFamilies(s proxy.Snapshot) (found []*proxy.Problem) {
	for _, f := range k.Families {
		err := k.Sockets.CheckFamily(f)
		if err == nil || s.IsZero() || !nodecheck.HasServices(s, f) {
			continue
		}
		p := &proxy.Problem{Kind: "Node", Field: host.DisableIPv6, Reason: proxy.NodeSetting}
		p.Name = s.Node().Name
		p.Err = fmt.Errorf("%w: Services are not served in %s; remedy: sysctl -w %s=0, or leave the family out of Options.Families", err, f, p.Field)
		found = append(found, p)
	}
	return found
}
