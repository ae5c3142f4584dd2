package host

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// DisableIPv6 is the sysctl with which a node can have no local routes of IPv6.
const DisableIPv6 = "net.ipv6.conf.lo.disable_ipv6"

// CheckFamily returns why the network namespace cannot use an IP family now, or nil. All routes of
// the captures lead to the loopback interface, so that interface alone counts.
func (s *Sockets) CheckFamily(f v1.IPFamily) error {
	if f != v1.IPv6Protocol {
		return nil
	}
	var value []byte
	err := s.Do(func() (err error) {
		if _, err = os.Stat("/proc/sys/net"); err != nil {
			return nil //nolint:nilerr // Without /proc nobody knows: the kernel is asked later.
		}
		value, err = os.ReadFile("/proc/sys/" + strings.ReplaceAll(DisableIPv6, ".", "/"))
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

// Look finds out which families the node can use now. Until the next call, the capture serves these.
func (c *Config) Look() {
	c.unusable = nil
	for _, f := range c.Families {
		if c.Sockets.CheckFamily(f) != nil {
			c.unusable = append(c.unusable, f)
		}
	}
}

// LooksDifferent reports whether the node can use other families than at the last Look.
func (c *Config) LooksDifferent() bool {
	return slices.ContainsFunc(c.Families, func(f v1.IPFamily) bool { return c.Serves(f) != (c.Sockets.CheckFamily(f) == nil) })
}
