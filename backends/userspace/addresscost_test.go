package userspace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// A change appends to the file, and lists addresses only if it adds one or opens a listener.
func TestCostOfAddresses(t *testing.T) {
	t.Parallel()
	h := newFakeHost("127.0.0.1")
	state := filepath.Join(t.TempDir(), "addresses")
	f := &follower{Backend: h.on(t, state, Options{})}
	server := tcpServer(t, "web")
	ports := manyPorts(100, server)
	node := snapshots.Node("127.0.0.1")
	f.apply(t, proxy.NewSnapshot(node, ports[:99]...))
	read := func() string {
		text, err := os.ReadFile(state)
		testenv.NoError(t, err)
		return string(text)
	}
	before := read()
	f.apply(t, proxy.NewSnapshot(node, ports...))
	if rest, appended := strings.CutPrefix(read(), before); !appended || strings.Count(rest, "\n") != 1 {
		t.Errorf("one more address: got the file\n%s\nwant one more line", read())
	}
	lists := h.lists
	f.apply(t, proxy.NewSnapshot(node, ports[:99]...))
	if h.lists != lists {
		t.Errorf("one Service less: got %d lists of addresses, want none", h.lists-lists)
	}
}
