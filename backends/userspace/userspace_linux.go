package userspace

import (
	"errors"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/internal/kinds"
	"github.com/vipkit/vipkit/backends/userspace/internal/netfilter"
)

// systemCapture is the default capture.
const systemCapture = TPROXY

// openSystem returns a backend with a capture of Linux.
func (o *Options) openSystem(descriptors int) (*Backend, error) {
	c, err := netfilter.New(netfilter.Config{
		Identity: o.Identity, Families: o.Families, Port: o.Port,
		AwaitEndpoints: o.Hooks.FirstConnection != nil, Redirect: o.Capture == Redirect,
	})
	if err != nil {
		return nil, err
	}
	b, err := o.start(c, backends.New(c.Render, backends.Target[netfilter.Key, netfilter.Value](c)), descriptors)
	if err != nil {
		return nil, err
	}
	own, err := kinds.Open(o.Identity, kinds.Userspace)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.instance = own
	return b, nil
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
