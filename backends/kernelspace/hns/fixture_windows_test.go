package hns

import (
	"context"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// open serves HNS to the library that stands in for computenetwork.dll.
func (m *machine) open(t *testing.T) {
	t.Helper()
	if os.Getenv("VIPKIT_HNS") == "" {
		testenv.CannotRun(t, "computenetwork.dll is that of Windows; run make windows")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	t.Cleanup(ended.Wait)
	t.Cleanup(func() { cancel() })
	serve := func(address string) (port string) {
		listener, err := net.Listen("tcp", address)
		testenv.NoError(t, err)
		serving := ctx
		ended.Go(func() {
			if err := m.service.Serve(serving, listener); err != nil {
				t.Error(err)
			}
		})
		return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	}
	port := serve("127.0.0.1:0")
	t.Setenv("VIPKIT_HNS", port)
	c, err := Open()
	testenv.NoError(t, err)
	m.Client = c
	m.setDown = func(down bool) {
		if down {
			cancel()
			ended.Wait()
			return
		}
		ctx, cancel = context.WithCancel(t.Context())
		serve("127.0.0.1:" + port)
	}
}
