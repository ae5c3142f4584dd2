package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// parameters is the folder of the kernel's parameters.
const parameters = "proc/sys/net/netfilter"

// maxFlows bounds MaxPerCore times the number of processors.
const maxFlows = 1 << 20

// Parameters are the parameters of the kernel's connection tracking that kube-proxy's
// configuration also has. A zero field leaves its parameter unchanged.
type Parameters struct {
	// MaxPerCore is how many flows the table may hold for each processor that this process may use;
	// together not more than 1,048,576, but at least Min. Min alone changes nothing. The hash table gets
	// room for a quarter as many, and never less than it has.
	MaxPerCore, Min int
	// The timeouts end flows without packets. They are rounded down to seconds.
	TCPEstablishedTimeout, TCPCloseWaitTimeout time.Duration
	// UDPTimeout is that of UDP flows, UDPStreamTimeout that of those with traffic in both directions.
	UDPTimeout, UDPStreamTimeout time.Duration
	// TCPBeLiberal makes packets outside of the TCP window count as valid.
	TCPBeLiberal bool
}

// Set sets the kernel's parameters, in the network namespace of the calling thread. It does not
// write a parameter that has the value already. If one fails, it sets the others; the error
// names all that failed. Set requires Linux, a writable /proc/sys, and for the hash table a
// writable /sys. It loads the module of connection tracking if that is needed.
func (p Parameters) Set() error { return p.set("/", runtime.NumCPU(), loadModule) }

// loadModule makes the kernel load connection tracking.
func loadModule() error {
	c, err := New(Options{})
	if err != nil {
		return err
	}
	return c.Close()
}

// set is Set in the file systems below root.
func (p Parameters) set(root string, processors int, load func() error) error {
	var errs []error
	_, err := os.Stat(filepath.Join(root, parameters, "nf_conntrack_max"))
	if errors.Is(err, fs.ErrNotExist) && p != (Parameters{}) {
		errs = append(errs, load())
	}
	set := func(name string, value int64) {
		if value > 0 {
			errs = append(errs, write(filepath.Join(root, parameters, name), value, value))
		}
	}
	seconds := func(d time.Duration) int64 { return int64(d / time.Second) }
	if p.MaxPerCore > 0 {
		flows := max(min(int64(p.MaxPerCore)*int64(processors), maxFlows), int64(p.Min))
		set("nf_conntrack_max", flows)
		errs = append(errs, write(filepath.Join(root, "sys/module/nf_conntrack/parameters/hashsize"), flows/4, math.MaxInt64))
	}
	set("nf_conntrack_tcp_timeout_established", seconds(p.TCPEstablishedTimeout))
	set("nf_conntrack_tcp_timeout_close_wait", seconds(p.TCPCloseWaitTimeout))
	if p.TCPBeLiberal {
		set("nf_conntrack_tcp_be_liberal", 1)
	}
	set("nf_conntrack_udp_timeout", seconds(p.UDPTimeout))
	set("nf_conntrack_udp_timeout_stream", seconds(p.UDPStreamTimeout))
	return errors.Join(errs...)
}

// write sets a parameter to value, unless it has a value from that to highest already.
func write(path string, value, highest int64) error {
	if text, err := os.ReadFile(path); err == nil {
		now, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && value <= now && now <= highest {
			return nil
		}
	}
	if err := os.WriteFile(path, strconv.AppendInt(nil, value, 10), 0); err != nil {
		return fmt.Errorf("set %s to %d: %w", filepath.Base(path), value, err)
	}
	return nil
}
