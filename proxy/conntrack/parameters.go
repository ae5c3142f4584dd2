package conntrack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// parameters is where the kernel has them.
const parameters = "proc/sys/net/netfilter"

// maxFlows bounds what is asked for by the number of processors alone.
const maxFlows = 1 << 20

// Parameters are those of the kernel's connection tracking that kube-proxy's configuration
// has, too. The zero value of each field leaves what it stands for as it is.
type Parameters struct {
	// MaxPerCore is how many flows the table may hold for each processor; together not
	// more than 1,048,576, but at least Min. Min alone changes nothing. The hash table gets
	// room for a quarter as many, and never less than it has.
	MaxPerCore, Min int
	// Timeouts end flows from which no packet comes any more. They count in whole seconds.
	TCPEstablishedTimeout, TCPCloseWaitTimeout time.Duration
	UDPTimeout, UDPStreamTimeout               time.Duration
	// TCPBeLiberal lets packets outside of the window pass for those of their flow.
	TCPBeLiberal bool
}

// Set makes the kernel's parameters these, in the network namespace of the calling thread. Those
// that are so already are not written, and one that cannot be set does not keep others
// from it; the error names all that could not. It takes a writable /proc/sys, and for
// the hash table /sys, which are those of Linux.
//
// On a node that has just been started nobody may have used connection tracking: where it
// is a module, it is loaded first, or there would be no parameters.
func (p Parameters) Set() error { return p.set("/", runtime.NumCPU(), loadModule) }

// loadModule has the kernel load connection tracking.
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
			errs = append(errs, write(filepath.Join(root, parameters, name), value))
		}
	}
	seconds := func(d time.Duration) int64 { return int64(d / time.Second) }
	flows := int64(0)
	if p.MaxPerCore > 0 {
		flows = max(min(int64(p.MaxPerCore)*int64(processors), maxFlows), int64(p.Min))
	}
	set("nf_conntrack_max", flows)
	if flows > 0 {
		errs = append(errs, enlarge(filepath.Join(root, "sys/module/nf_conntrack/parameters/hashsize"), flows/4))
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

// write sets a parameter unless it has the value.
func write(path string, value int64) error {
	if now, err := read(path); err == nil && now == value {
		return nil
	}
	if err := os.WriteFile(path, strconv.AppendInt(nil, value, 10), 0); err != nil {
		return fmt.Errorf("set it to %d: %w", value, err)
	}
	return nil
}

// enlarge sets a parameter that is less.
func enlarge(path string, value int64) error {
	if now, err := read(path); err == nil && now >= value {
		return nil
	}
	return write(path, value)
}

func read(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
