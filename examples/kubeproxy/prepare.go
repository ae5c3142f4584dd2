package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vipkit/vipkit/proxy/conntrack"
)

// parameters is where the kernel has those of connection tracking.
const parameters = "proc/sys/net/netfilter"

// maxFlows bounds what is asked for by the number of processors alone.
const maxFlows = 1 << 20

// prepare sets what takes more privileges than the running program has: the
// parameters of connection tracking, in the file systems below root. One that is
// as it must be is not written, and one that fails does not keep others from it.
// Load has the kernel load what they are parameters of. On a node that has just been
// started nobody may have used it, and they do not exist.
func (c *conntrackConfig) prepare(root string, processors int, load func() error) error {
	var errs []error
	if _, err := os.Stat(filepath.Join(root, parameters, "nf_conntrack_max")); errors.Is(err, fs.ErrNotExist) && *c != (conntrackConfig{}) {
		errs = append(errs, load())
	}
	set := func(name string, value int64) {
		if value > 0 {
			errs = append(errs, write(filepath.Join(root, parameters, name), value))
		}
	}
	seconds := func(d duration) int64 { return int64(d.Duration / time.Second) }
	flows := int64(0)
	if c.MaxPerCore > 0 {
		flows = max(int64(min(c.MaxPerCore*processors, maxFlows)), int64(c.Min))
	}
	set("nf_conntrack_max", flows)
	if flows > 0 {
		errs = append(errs, enlarge(filepath.Join(root, "sys/module/nf_conntrack/parameters/hashsize"), flows/4))
	}
	set("nf_conntrack_tcp_timeout_established", seconds(c.TCPEstablishedTimeout))
	set("nf_conntrack_tcp_timeout_close_wait", seconds(c.TCPCloseWaitTimeout))
	if c.TCPBeLiberal {
		set("nf_conntrack_tcp_be_liberal", 1)
	}
	set("nf_conntrack_udp_timeout", seconds(c.UDPTimeout))
	set("nf_conntrack_udp_timeout_stream", seconds(c.UDPStreamTimeout))
	return errors.Join(errs...)
}

// loadConntrack has the kernel load connection tracking.
func loadConntrack() error {
	c, err := conntrack.New(conntrack.Options{})
	if err != nil {
		return err
	}
	return c.Close()
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
