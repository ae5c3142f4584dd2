//go:build !linux

package userspace

import (
	"fmt"

	"github.com/vipkit/vipkit/proxy"
)

// systemCapture is the default capture.
const systemCapture = Addresses

// openSystem fails: the captures other than [Addresses] need Linux.
func (o *Options) openSystem() (*Backend, error) {
	return nil, fmt.Errorf("%w: the capture %v needs Linux", proxy.ErrUnsupported, o.Capture)
}

// descriptorLimit returns 0, which stands for any number: the system has no such limit that a
// program could ask for.
func descriptorLimit() (int, error) { return 0, nil }
