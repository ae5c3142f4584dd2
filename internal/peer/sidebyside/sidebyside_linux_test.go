package sidebyside

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

const (
	// servicesVariable names the environment variable with the sizes to measure.
	servicesVariable = "VIPKIT_SERVICES"
	// contenderVariable makes this program measure one contender and exit.
	contenderVariable = "VIPKIT_CONTENDER"
	// attempts is how often a pair is measured until no step of kube-proxy is cheaper.
	attempts = 4
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if name := os.Getenv(contenderVariable); name != "" {
		return contend(name)
	}
	return netnstest.WithPrivileges(m.Run)
}

// contend measures one contender, and writes the costs to standard output.
func contend(name string) int {
	klog.SetLogger(funcr.New(func(_, text string) {
		if strings.Contains(text, `"error"`) {
			fmt.Fprintln(os.Stderr, text)
		}
	}, funcr.Options{}))
	services, err := strconv.Atoi(os.Getenv(servicesVariable))
	if err == nil {
		err = raiseLoopback()
	}
	var costs map[string]cost
	if err == nil {
		costs, err = measure(name, services)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(costs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// raiseLoopback makes the new network namespace one of a node: before, IPVS takes no real servers.
func raiseLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// rivals are a backend of this repository and a proxier of kube-proxy, and how many Services
// the latter can load within the time limit.
type rivals struct {
	ours, theirs string
	most         int
}

func pairs() []rivals {
	return []rivals{
		{"vipkit nftables", "kube-proxy nftables", 1 << 20},
		{"vipkit nftables", "kube-proxy nftables, by nft", 1 << 20},
		{"vipkit iptables-legacy", "kube-proxy iptables-legacy", 1 << 20},
		{"vipkit iptables-nft", "kube-proxy iptables-nft", 1000},
	}
}

// TestSideBySide measures all contenders with the same Services. No step of kube-proxy may be
// cheaper both in duration and in processor time. What else the machine does makes a measurement
// longer and never shorter, so that a pair has several attempts, of which the shortest times count.
func TestSideBySide(t *testing.T) {
	needRoot(t)
	netnstest.NFT(t)
	for _, services := range sizes(t) {
		measured := map[string]map[string]cost{}
		for _, r := range pairs() {
			if services > r.most {
				continue
			}
			for attempt := 1; attempt == 1 || attempt <= attempts && len(cheaper(r, measured)) > 0; attempt++ {
				for _, name := range []string{r.ours, r.theirs} {
					if attempt > 1 || measured[name] == nil {
						measured[name] = least(measured[name], inNamespace(t, name, services))
						checkWrites(t, name, measured[name])
					}
				}
			}
			compare(t, r, services, measured)
		}
		var table strings.Builder
		for _, name := range slices.Sorted(maps.Keys(measured)) {
			table.WriteString(row(name, services, measured[name]))
		}
		t.Logf("\n%s", table.String())
	}
}

// least returns the lower times of two measurements. The first one may be nil.
func least(before, now map[string]cost) map[string]cost {
	for step, b := range before {
		n := now[step]
		n.Wall, n.CPU = min(b.Wall, n.Wall), min(b.CPU, n.CPU)
		now[step] = n
	}
	return now
}

// needRoot ends the test in a user namespace: kube-proxy cannot make the buffers of its sockets
// large enough for its transactions there.
func needRoot(t *testing.T) {
	t.Helper()
	netnstest.NeedNamespaces(t)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	testenv.NoError(t, err)
	defer func() { _ = unix.Close(fd) }() // An error does not matter.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 1<<20); err != nil {
		testenv.CannotRun(t, "needs root: large netlink transactions of kube-proxy")
	}
}

func sizes(t *testing.T) []int {
	t.Helper()
	text := os.Getenv(servicesVariable)
	if text == "" {
		return []int{200}
	}
	var all []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			t.Fatalf("%s: got %q, want numbers from 1 on, with commas between them", servicesVariable, text)
		}
		all = append(all, n)
	}
	return all
}

// inNamespace measures a contender in a process and a network namespace of its own.
func inNamespace(t *testing.T, name string, services int) map[string]cost {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	folder := t.TempDir()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), contenderVariable+"="+name, servicesVariable+"="+strconv.Itoa(services),
		// By default all iptables programs on the machine share one lock.
		"XTABLES_LOCKFILE="+filepath.Join(folder, "lock"),
		"PATH="+programs(t, folder, name)+":"+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, errs.String())
	}
	costs := map[string]cost{}
	if err := json.Unmarshal(out.Bytes(), &costs); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return costs
}

// programs returns a folder in which the names of iptables without a suffix are links to the
// flavour of the contender: kube-proxy has no option for it.
func programs(t *testing.T, folder, name string) string {
	t.Helper()
	_, flavour, ok := strings.Cut(name, " iptables-")
	if !ok {
		return folder
	}
	multi, err := exec.LookPath("/usr/sbin/xtables-" + flavour + "-multi")
	if err != nil {
		testenv.CannotRun(t, err.Error())
	}
	for _, program := range []string{"iptables", "iptables-save", "iptables-restore"} {
		testenv.NoError(t, os.Symlink(multi, filepath.Join(folder, program)))
	}
	return folder
}

// checkWrites fails the test if a contender has written nothing for a change, or if a backend
// of this repository has written although nothing changed. The kernel does not report writes
// to the tables of iptables-legacy.
func checkWrites(t *testing.T, name string, costs map[string]cost) {
	t.Helper()
	if isLegacy(name) {
		return
	}
	for _, step := range []string{"endpoint", "service"} {
		if costs[step].Writes == 0 {
			t.Errorf("%s, %s: objects written: got none, want some", name, step)
		}
	}
	for _, step := range []string{"nothing", "restart"} {
		if n := costs[step].Writes; n != 0 && strings.HasPrefix(name, "vipkit") {
			t.Errorf("%s, %s: objects written: got %d, want none", name, step, n)
		}
	}
}

func isLegacy(name string) bool { return strings.HasSuffix(name, "legacy") }

// compare fails the test if kube-proxy is cheaper.
func compare(t *testing.T, r rivals, services int, measured map[string]map[string]cost) {
	t.Helper()
	for _, step := range steps() {
		ours, theirs := measured[r.ours][step], measured[r.theirs][step]
		t.Logf("%d services, %s: %s takes %.1f times as long as %s, %.1f times the processor time", services, step, r.theirs,
			float64(theirs.Wall)/float64(ours.Wall), r.ours, float64(theirs.CPU)/float64(max(ours.CPU, time.Microsecond)))
	}
	for _, step := range cheaper(r, measured) {
		ours, theirs := measured[r.ours][step], measured[r.theirs][step]
		t.Errorf("%d services, %s: %s: got %v (processors %v), want no more than %s: %v (%v)", services, step,
			r.ours, ours.Wall, ours.CPU, r.theirs, theirs.Wall, theirs.CPU)
	}
}

// cheaper returns the steps in which kube-proxy is cheaper both in duration and in processor time.
func cheaper(r rivals, measured map[string]map[string]cost) []string {
	return slices.DeleteFunc(steps(), func(step string) bool {
		ours, theirs := measured[r.ours][step], measured[r.theirs][step]
		return ours.Wall <= theirs.Wall || ours.CPU <= theirs.CPU
	})
}

// row returns a line of a table in Markdown.
func row(name string, services int, costs map[string]cost) string {
	var b strings.Builder
	size := strconv.Itoa(services)
	if at := len(size) - 3; at > 0 {
		size = size[:at] + "," + size[at:]
	}
	fmt.Fprintf(&b, "| %s × %d | %s |", size, endpointsEach, name)
	for _, step := range steps() {
		c := costs[step]
		fmt.Fprintf(&b, " %s (%s)", short(c.Wall), short(c.CPU))
		if c.Writes >= 0 && !isLegacy(name) {
			fmt.Fprintf(&b, ", %d", c.Writes)
		}
		b.WriteString(" |")
	}
	return b.String() + "\n"
}

// short formats a duration with two or three digits.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Microsecond:
		return fmt.Sprintf("%.1f µs", float64(d)/1e3)
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
