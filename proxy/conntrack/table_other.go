//go:build !linux

package conntrack

import "github.com/vipkit/vipkit/proxy"

func openTable() (table, error) { return nil, proxy.ErrUnsupported }
