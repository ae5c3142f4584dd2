package kernelspace_test

import (
	"context"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/vipkit/vipkit/backends/kernelspace"
	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/backends/kernelspace/hns"
	"github.com/vipkit/vipkit/internal/testing/simhns"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// bind gives the simulated HNS of a machine to programs of Windows, and returns a client that calls
// computenetwork.dll.
func bind(t *testing.T, m *machine) *hns.Client {
	t.Helper()
	if os.Getenv("VIPKIT_HNS") == "" {
		testenv.CannotRun(t, "computenetwork.dll is that of Windows; run make windows")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.NoError(t, err)
	service := simhns.New(m.Sim)
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := service.Serve(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("VIPKIT_HNS", strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
	client, err := hns.Open()
	testenv.NoError(t, err)
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		if n := service.OpenHandles(); n != 0 {
			t.Errorf("open handles at the end: got %d, want 0", n)
		}
		cancel()
		ended.Wait()
		service.Close()
	})
	return client
}

// Through the binding the backend does what it does without it: with faults and after restarts, HNS
// has in the end what an empty one has to which the backend is connected directly.
func TestHistoryThroughTheBinding(t *testing.T) {
	for _, version := range []hcn.Version{newest(), noModify()} {
		t.Run(version.String(), func(t *testing.T) {
			r := testenv.Random(t)
			m := newMachine(t, version)
			client := bind(t, m)
			restart := func() {
				m.applied = proxy.Snapshot{}
				var err error
				if m.backend, err = kernelspace.New(client, m.options); err != nil {
					t.Fatal(err)
				}
			}
			restart()
			ports := make([]*proxy.ServicePort, 12)
			for step := range 20 {
				i := r.IntN(len(ports))
				if ports[i] = nil; r.IntN(4) > 0 {
					ports[i] = randomPort(r, i+1)
				}
				if step == 10 {
					restart()
				}
				m.SetFault(randomFault(r))
				_ = m.try(ports...) // what failed is what converge repairs
				m.SetFault(nil)
				if step%5 == 4 {
					m.converge(step, ports)
				}
				if t.Failed() {
					t.FailNow()
				}
			}
		})
	}
}
