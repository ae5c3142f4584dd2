package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

type setting struct{ name, value string }

// Sysctl sets a kernel parameter of the namespace, named by its path below
// /proc/sys, such as net/ipv4/ip_forward. A parameter that this kernel does not
// have is an error that is [fs.ErrNotExist].
func (n *NS) Sysctl(name, value string) error {
	return n.Do(func() error { return writeSysctl(setting{name, value}) })
}

// Forward makes the namespace a router for both IP families.
func (n *NS) Forward() error {
	return n.Do(func() error {
		return errors.Join(
			writeSysctl(setting{"net/ipv4/ip_forward", "1"}),
			writeSysctl(setting{"net/ipv6/conf/all/forwarding", "1"}),
		)
	})
}

// configure sets up a new namespace as the documentation of New says.
func (n *NS) configure() error {
	err := n.Do(func() error {
		for _, s := range testSettings() {
			// A kernel without the parameter lacks the feature that it turns
			// off.
			if err := writeSysctl(s); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return n.loopbackUp()
}

func (n *NS) loopbackUp() error {
	lo, err := n.netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("netns: loopback interface: %w", err)
	}
	return netlinkUp(n.netlink, lo)
}

// testSettings lists the parameters of a namespace for tests. New interfaces copy
// conf/default.
func testSettings() []setting {
	group := fmt.Sprintf("%d %d", os.Getegid(), os.Getegid())
	all := []setting{
		{"net/ipv4/icmp_ratelimit", "0"},
		{"net/ipv4/icmp_ratemask", "0"},
		{"net/ipv6/icmp/ratelimit", "0"},
		// The kernel refuses an empty mask; this type of ICMPv6 is unassigned.
		{"net/ipv6/icmp/ratemask", "255"},
		{"net/ipv4/ping_group_range", group},
	}
	for _, who := range []string{"all", "default", "lo"} {
		v4, v6 := "net/ipv4/conf/"+who, "net/ipv6/conf/"+who
		all = append(all,
			setting{v4 + "/rp_filter", "0"},
			setting{v4 + "/send_redirects", "0"},
			setting{v4 + "/accept_redirects", "0"},
			setting{v6 + "/accept_redirects", "0"},
			setting{v6 + "/accept_ra", "0"},
			setting{v6 + "/accept_dad", "0"},
			setting{v6 + "/dad_transmits", "0"},
			setting{v6 + "/disable_ipv6", "0"},
		)
	}
	return all
}

func writeSysctl(s setting) error {
	if err := os.WriteFile(filepath.Join("/proc/sys", s.name), []byte(s.value), 0); err != nil {
		return fmt.Errorf("netns: set sysctl: %w", err)
	}
	return nil
}

func netlinkUp(h *netlink.Handle, l netlink.Link) error {
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("netns: bring up %s: %w", l.Attrs().Name, err)
	}
	return nil
}
