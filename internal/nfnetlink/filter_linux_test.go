package nfnetlink

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

// Kernels before Linux 6.7 allow a socket 20 KiB for its filter, and an administrator may
// allow less: names of any length are still told apart, or the packet passes.
func TestMonitorWithLittleMemoryForItsFilter(t *testing.T) {
	c := openInNamespace(t)
	other := open(t)
	for _, memory := range []int{128 << 10, 20 << 10, 1 << 10} {
		// This file is that of the namespace only since Linux 6.8.
		if err := os.WriteFile("/proc/sys/net/core/optmem_max", fmt.Append(nil, memory), 0); err != nil {
			testenv.CannotRun(t, err.Error())
		}
		for _, length := range []int{1, 2, 3, 4, 5, 7, 8, 50, 63, 200, 253} {
			name := strings.Repeat("x", length)
			m, err := c.Monitor(name, name+"_2")
			if err != nil {
				t.Fatalf("with %d bytes, for names of %d: %v", memory, length, err)
			}
			for _, touched := range []string{name, name + "_2", "x" + name, name[1:] + "y", name[1:] + "yx", "y"} {
				begin(t, m)
				b, clean := manyTables(0, touched)
				commit(t, other, b)
				commit(t, c, clean)
				own := touched == name || touched == name+"_2"
				if got := m.Noticed(); got != own && (own || memory > 1<<10 && length < 50) {
					t.Errorf("with %d bytes, watching names of %d, after a commit to %q: noticed: %t", memory, length, touched, got)
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
