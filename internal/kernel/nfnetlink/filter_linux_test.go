package nfnetlink

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Kernels before Linux 6.7 limit the filter of a socket to 20 KiB, and an administrator may
// set a lower limit: the filter still distinguishes names of any length, or passes the
// packet.
func TestMonitorWithShortFilter(t *testing.T) {
	t.Parallel()
	c := openInNamespace(t)
	other := open(t)
	for _, memory := range []int{128 << 10, 20 << 10, 1 << 10} {
		// Before Linux 6.8 a network namespace has no such file.
		if err := os.WriteFile("/proc/sys/net/core/optmem_max", fmt.Append(nil, memory), 0); err != nil {
			testenv.CannotRun(t, err.Error())
		}
		for _, length := range []int{1, 2, 3, 4, 5, 7, 8, 50, 63, 200, 253} {
			name := strings.Repeat("x", length)
			m, err := c.Monitor(name, name+"_2")
			if err != nil {
				t.Fatalf("optmem_max of %d bytes, names of %d bytes: %v", memory, length, err)
			}
			for _, touched := range []string{name, name + "_2", "x" + name, name[1:] + "y", name[1:] + "yx", "y"} {
				begin(t, m)
				b, clean := manyTables(0, touched)
				commit(t, other, b)
				commit(t, c, clean)
				own := touched == name || touched == name+"_2"
				if got := m.Noticed(); got != own && (own || memory > 1<<10 && length < 50) {
					t.Errorf("optmem_max of %d bytes, names of %d bytes, after a commit to %q: noticed: got %t, want %t",
						memory, length, touched, got, own)
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
