package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	moby "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/ipvs"
)

// Settings that the backend changes. The first ones are sysctls, the others IPVS timeouts.
const (
	settingConntrack   = "conntrack"
	settingNoDest      = "expire_nodest_conn"
	settingQuiescent   = "expire_quiescent_template"
	settingForward     = "ip_forward"
	settingARPIgnore   = "arp_ignore"
	settingARPAnnounce = "arp_announce"
	settingTCP         = "tcp"
	settingTCPFin      = "tcpfin"
	settingUDP         = "udp"
)

func settingNames() []string {
	return []string{
		settingConntrack, settingNoDest, settingQuiescent, settingForward, settingARPIgnore, settingARPAnnounce,
		settingTCP, settingTCPFin, settingUDP,
	}
}

// sysctl returns the file of a setting; ok is false for a timeout.
func sysctl(name string) (path string, ok bool) {
	const folder = "/proc/sys/net/ipv4/"
	switch name {
	case settingForward:
		return folder + name, true
	case settingARPIgnore, settingARPAnnounce:
		return folder + "conf/all/" + name, true
	case settingTCP, settingTCPFin, settingUDP:
		return "", false
	}
	return folder + "vs/" + name, true
}

// wanted returns the settings that the backend needs, with their values.
func (b *backend) wanted() map[string]string {
	all := map[string]string{
		settingConntrack: "1", // to masquerade
		settingNoDest:    "1", // flows to a removed endpoint get another one
		settingQuiescent: "1", // affinity to a draining endpoint ends
	}
	if b.needsForwarding() {
		all[settingForward] = "1"
	}
	if b.options.StrictARP {
		all[settingARPIgnore], all[settingARPAnnounce] = "1", "2"
	}
	for name, d := range map[string]time.Duration{
		settingTCP: b.options.TCPTimeout, settingTCPFin: b.options.TCPFinTimeout, settingUDP: b.options.UDPTimeout,
	} {
		if d > 0 {
			all[name] = strconv.Itoa(int(d / time.Second))
		}
	}
	return all
}

// changes are the settings that the backend has changed, with their former values and those
// that it wrote. They stand in the alias of its device, as in "conntrack=0>1 udp=300>60",
// so that Cleanup of any process can restore them.
type changes map[string]changed

type changed struct{ from, to string }

// parseChanges reads an alias. Others may write it who may not write sysctls, so it ignores what
// the backend never writes.
func parseChanges(alias string) changes {
	c := changes{}
	for field := range strings.FieldsSeq(alias) {
		name, values, _ := strings.Cut(field, "=")
		from, to, _ := strings.Cut(values, ">")
		if slices.Contains(settingNames(), name) && isNumber(from) && isNumber(to) {
			c[name] = changed{from, to}
		}
	}
	return c
}

func isNumber(text string) bool {
	_, err := strconv.ParseUint(text, 10, 31)
	return err == nil
}

func (c changes) String() string {
	fields := make([]string, 0, len(c))
	for name, x := range c {
		fields = append(fields, name+"="+x.from+">"+x.to)
	}
	slices.Sort(fields)
	return strings.Join(fields, " ")
}

// former returns the former values of settings that are wanted no more, unless another program
// has changed them since.
func (c changes) former(k *kernelSettings, want map[string]string) (map[string]string, error) {
	write := map[string]string{}
	for name, was := range c {
		if _, stays := want[name]; stays {
			continue
		}
		now, ok, err := k.read(name)
		if err != nil {
			return nil, err
		}
		if ok && now == was.to {
			write[name] = was.from
		}
	}
	return write, nil
}

// next returns the changes after settings have become those of want, and the values to write for
// that.
func (c changes) next(k *kernelSettings, want map[string]string) (after changes, write map[string]string, err error) {
	if write, err = c.former(k, want); err != nil {
		return nil, nil, err
	}
	after = changes{}
	for name, to := range want {
		now, ok, err := k.read(name)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			continue // what the kernel does not have is not needed
		}
		if x, isOurs := c.from(name, now, to); isOurs {
			after[name] = x
		}
		if now != to {
			write[name] = to
		}
	}
	return after, write, nil
}

// from returns the change of a setting from its former value to a new one, and false if another
// program has given it the new one.
func (c changes) from(name, now, to string) (x changed, isOurs bool) {
	was, has := c[name]
	if has && (now == was.to || to == was.to) {
		return changed{was.from, to}, true
	}
	return changed{now, to}, now != to
}

// applySettings gives the settings the values of want, and those that the backend has changed and
// that are wanted no more their former ones.
func (b *backend) applySettings(want map[string]string) error {
	before, err := b.changesSoFar()
	if err != nil {
		return err
	}
	var after changes
	err = b.inKernel(func(k *kernelSettings) error {
		if k.missing != nil && len(want) > 0 {
			return k.missing
		}
		next, write, err := before.next(k, want)
		if err != nil {
			return err
		}
		// A process that ends between the two must not lose a former value.
		both := maps.Clone(before)
		maps.Copy(both, next)
		if err := b.remember(both); err != nil {
			return err
		}
		after = next
		var errs []error
		for name, value := range write {
			errs = append(errs, k.write(name, value))
		}
		return errors.Join(errs...)
	})
	if err != nil && after != nil {
		return errors.Join(err, b.rememberWritten(before, after))
	}
	if err != nil {
		return err
	}
	return b.remember(after)
}

// rememberWritten records the changes after some settings could not be written. What another program
// writes later must not be taken for the backend's.
func (b *backend) rememberWritten(before, after changes) error {
	return b.inKernel(func(k *kernelSettings) error {
		written := maps.Clone(before)
		for name, x := range after {
			now, ok, err := k.read(name)
			if err != nil {
				return err
			}
			if ok && now == x.to {
				written[name] = x
			}
		}
		return b.remember(written)
	})
}

// changesSoFar returns the changes that the alias of the device has. If another program has removed the
// device, those that this process remembers count.
func (b *backend) changesSoFar() (changes, error) {
	l, err := b.target.device.find()
	if err != nil {
		return nil, err
	}
	if l == nil || l.Attrs().Alias == "" {
		return maps.Clone(b.changes), nil
	}
	return parseChanges(l.Attrs().Alias), nil
}

// remember records changes in this process, and in the alias of the device if it exists.
func (b *backend) remember(c changes) error {
	b.changes = c
	l, err := b.target.device.find()
	if err != nil || l == nil || l.Attrs().Alias == c.String() {
		return err
	}
	return b.target.device.handle.LinkSetAlias(l, c.String())
}

// kernelSettings reads and writes settings of the network namespace of the thread.
type kernelSettings struct {
	timeouts map[string]string
	changed  bool // timeouts
	// missing is why the kernel has no settings of IPVS, nil if it has them.
	missing error
}

// inKernel calls f with the settings of the backend's network namespace, and writes the
// timeouts that f changed.
func (b *backend) inKernel(f func(*kernelSettings) error) error {
	b.target.mu.Lock()
	defer b.target.mu.Unlock()
	k, err := b.target.readTimeouts()
	if err != nil {
		return err
	}
	if err := b.namespace.Do(func() error { return f(k) }); err != nil || !k.changed {
		return err
	}
	number := func(name string) time.Duration {
		n, err := strconv.ParseUint(k.timeouts[name], 10, 31)
		if err != nil {
			return 0 // keeps the kernel's value
		}
		return time.Duration(n) * time.Second
	}
	return b.target.kernel.SetTimeouts(moby.Config{TimeoutTCP: number(settingTCP), TimeoutTCPFin: number(settingTCPFin), TimeoutUDP: number(settingUDP)})
}

// readTimeouts returns the settings with the timeouts of IPVS. It requires t.mu.
func (t *target) readTimeouts() (*kernelSettings, error) {
	if t.kernel == nil {
		return &kernelSettings{missing: ipvs.ErrMissing}, nil
	}
	now, err := t.kernel.Timeouts()
	switch {
	case errors.Is(err, ipvs.ErrMissing):
		return &kernelSettings{missing: err}, nil
	case err != nil:
		return nil, err
	}
	text := func(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }
	return &kernelSettings{timeouts: map[string]string{
		settingTCP: text(now.TimeoutTCP), settingTCPFin: text(now.TimeoutTCPFin), settingUDP: text(now.TimeoutUDP),
	}}, nil
}

// read returns a setting; ok is false if the kernel does not have it.
func (k *kernelSettings) read(name string) (value string, ok bool, err error) {
	path, isFile := sysctl(name)
	if !isFile {
		value, ok = k.timeouts[name]
		return value, ok, nil
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	return strings.TrimSpace(string(text)), err == nil, err
}

func (k *kernelSettings) write(name, value string) error {
	path, isFile := sysctl(name)
	if !isFile {
		k.timeouts[name], k.changed = value, true
		return nil
	}
	err := os.WriteFile(path, []byte(value), 0o644)
	if errors.Is(err, unix.EROFS) {
		err = fmt.Errorf("%w: set it before (in the agent with -init-only: make its pod again), or mount /proc/sys writable", err)
	}
	if err != nil {
		return fmt.Errorf("setting %s to %s: %w", path, value, err)
	}
	return nil
}
