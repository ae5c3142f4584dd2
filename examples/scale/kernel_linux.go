package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/vipkit/vipkit/internal/nfnetlink"
)

// countElements asks the kernel what all sets of the table hold.
func countElements() (total int, err error) {
	conn, err := nfnetlink.Open()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, table := context.Background(), nfnetlink.Table{Family: nfnetlink.IPv4, Name: "vipkit"}
	var sets []nfnetlink.SetInfo
	if err := conn.Sets(ctx, table, nfnetlink.Collect(&sets)); err != nil {
		return 0, err
	}
	for _, s := range sets {
		n := 0
		err := conn.Elements(ctx, table, s.Name, nfnetlink.Visitor[nfnetlink.Element]{
			Begin: func() { n = 0 },
			Each:  func(*nfnetlink.Element) error { n++; return nil },
		})
		if err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// peakRSS gives the most memory that the process ever had, in MiB.
func peakRSS() (float64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kib, err := strconv.ParseFloat(f[1], 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}
