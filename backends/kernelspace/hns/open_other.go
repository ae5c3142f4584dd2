//go:build !windows

package hns

import (
	"fmt"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
)

// Open reports [hcn.ErrUnsupported]: only Windows has HNS.
func Open() (*Client, error) {
	return nil, fmt.Errorf("hns: %w: this operating system is not Windows", hcn.ErrUnsupported)
}
