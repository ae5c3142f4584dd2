package userspace

import (
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/userspace/internal/netfilter"
)

// systemCapture is the default capture.
const systemCapture = TPROXY

// target is the target of a capture of Linux.
type target = backends.Target[netfilter.Key, netfilter.Value]

// openSystem returns a backend with a capture of Linux.
func (o *Options) openSystem(descriptors int) (*Backend, error) {
	return o.openNetfilter(descriptors, func(c *netfilter.Capture) target { return c })
}

// openNetfilter does that. Tests may have another target around the capture.
func (o *Options) openNetfilter(descriptors int, around func(*netfilter.Capture) target) (*Backend, error) {
	c, err := netfilter.New(netfilter.Config{
		Identity: o.Identity, Families: o.Families, Port: o.Port,
		AwaitEndpoints: o.Hooks.FirstConnection != nil, Redirect: o.Capture == Redirect,
	})
	if err != nil {
		return nil, err
	}
	inner, err := kinds.Among(backends.New(c.Render, around(c)), o.Identity, kinds.Userspace)
	if err != nil {
		return nil, err
	}
	return o.start(c, inner, descriptors)
}

// descriptorLimit returns how many file descriptors the process may open. At the start, the Go
// runtime has raised the soft limit to the hard limit.
func descriptorLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	return int(min(limit.Cur, math.MaxInt32)), nil
}
