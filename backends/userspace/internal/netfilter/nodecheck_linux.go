package netfilter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/vipkit/vipkit/backends/internal/nodecheck"
	"github.com/vipkit/vipkit/proxy"
)

// checkNode returns the settings of the node that matter. Settings of forwarding and of bridges do
// not, since all connections end at sockets of the backend.
func (c *Capture) checkNode(s proxy.Snapshot) []*proxy.Problem {
	found := c.checkFamilies(s)
	if c.Redirect {
		return append(found, nodecheck.Deliveries(s, nodecheck.Delivery{Rule: nodecheck.Translated(), Port: c.Port})...)
	}
	found = append(found, nodecheck.Capture(s)...)
	mark := c.Identity.Mark
	return append(found, nodecheck.Deliveries(s, nodecheck.Delivery{Rule: nodecheck.Rule{
		NFT: fmt.Sprintf("meta mark & %#[1]x == %#[1]x accept", mark), IPTables: fmt.Sprintf("-m mark --mark %#[1]x/%#[1]x -j ACCEPT", mark),
	}})...)
}

// disableIPv6 is the sysctl with which a node can have no local routes of IPv6.
const disableIPv6 = "net.ipv6.conf.lo.disable_ipv6"

// checkFamilies returns a problem if Services have an IP family that the node cannot use.
func (c *Capture) checkFamilies(s proxy.Snapshot) (found []*proxy.Problem) {
	for _, f := range c.Families {
		err := c.checkFamily(f)
		if err == nil || s.IsZero() || !nodecheck.HasServices(s, f) {
			continue
		}
		p := &proxy.Problem{Kind: "Node", Field: disableIPv6, Reason: proxy.NodeSetting}
		p.Name = s.Node().Name
		p.Err = fmt.Errorf("%w: Services are not served in %s; remedy: sysctl -w %s=0, or leave the family out of Options.Families", err, f, p.Field)
		found = append(found, p)
	}
	return found
}

// checkFamily returns why the network namespace cannot use an IP family now, or nil. All routes of
// the captures lead to the loopback interface, so that interface alone counts.
func (c *Capture) checkFamily(f v1.IPFamily) error {
	if f != v1.IPv6Protocol {
		return nil
	}
	var value []byte
	err := c.sockets.Do(func() (err error) {
		if _, err = os.Stat("/proc/sys/net"); err != nil {
			return nil //nolint:nilerr // Without /proc nobody knows: the kernel is asked later.
		}
		value, err = os.ReadFile("/proc/sys/" + strings.ReplaceAll(disableIPv6, ".", "/"))
		return err
	})
	switch value := strings.TrimSpace(string(value)); {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("does not exist: the loopback interface has no IPv6")
	case value == "1":
		return errors.New("is 1")
	}
	return nil
}

// look finds out which families the node can use now. Until the next call, the capture serves these.
func (c *Capture) look() {
	c.unusable = nil
	for _, f := range c.Families {
		if c.checkFamily(f) != nil {
			c.unusable = append(c.unusable, f)
		}
	}
}

// looksDifferent reports whether the node can use other families than at the last look.
func (c *Capture) looksDifferent() bool {
	return slices.ContainsFunc(c.Families, func(f v1.IPFamily) bool { return c.serves(f) != (c.checkFamily(f) == nil) })
}
