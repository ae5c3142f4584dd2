package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	moby "github.com/moby/ipvs"
	"golang.org/x/sys/unix"
)

// sysctls is the folder of the settings that the backend writes.
const sysctls = "/proc/sys/net/ipv4/"

// settingForward has the kernel forward packets of IPv4.
const settingForward = sysctls + "ip_forward"

// settings returns the files of the settings that the backend needs, with their values.
func (o *Options) settings() map[string]string {
	all := map[string]string{
		sysctls + "vs/conntrack":                 "1", // to masquerade
		sysctls + "vs/expire_nodest_conn":        "1", // flows to a removed endpoint get another one
		sysctls + "vs/expire_quiescent_template": "1", // affinity to a draining endpoint ends
	}
	if o.needsForwarding() {
		all[settingForward] = "1"
	}
	if o.StrictARP {
		all[sysctls+"conf/all/arp_ignore"], all[sysctls+"conf/all/arp_announce"] = "1", "2"
	}
	return all
}

// writeSettings writes the settings of the kernel. They stay: other programs may need them too.
func (t *target) writeSettings() error {
	o := &t.options
	if want := (moby.Config{TimeoutTCP: o.TCPTimeout, TimeoutTCPFin: o.TCPFinTimeout, TimeoutUDP: o.UDPTimeout}); want != (moby.Config{}) {
		if err := t.kernel.SetTimeouts(want); err != nil {
			return err
		}
	}
	return t.device.at.Do(func() error {
		var errs []error
		for path, value := range o.settings() {
			errs = append(errs, writeSetting(path, value))
		}
		return errors.Join(errs...)
	})
}

// writeSetting gives a setting a value unless it has it: /proc/sys may be read-only. What the kernel does not have is
// not needed.
func writeSetting(path, value string) error {
	now, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(now)) == value {
		return nil
	}
	if err == nil {
		err = os.WriteFile(path, []byte(value), 0o644)
	}
	if errors.Is(err, unix.EROFS) {
		err = fmt.Errorf("%w: set it before (in the agent with -init-only: make its pod again), or mount /proc/sys writable", err)
	}
	if err != nil {
		return fmt.Errorf("setting %s to %s: %w", path, value, err)
	}
	return nil
}
