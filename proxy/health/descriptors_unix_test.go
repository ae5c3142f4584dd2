//go:build unix

package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vipkit/vipkit/internal/testing/objects"
	"github.com/vipkit/vipkit/internal/testing/snapshots"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// limitDescriptors sets the limit of file descriptors until the test ends.
func limitDescriptors(t *testing.T, limit int) {
	t.Helper()
	var was syscall.Rlimit
	testenv.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	now := was
	now.Cur = 0
	for range limit {
		now.Cur++ // Its type is not the same on every system.
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		testenv.CannotRun(t, "RLIMIT_NOFILE cannot be set: "+err.Error())
	}
	t.Cleanup(func() { testenv.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)) })
}

// status returns the status of a response, 0 if there is none.
func status(t *testing.T, address string) int {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address)
	if err != nil {
		return 0
	}
	testenv.NoError(t, response.Body.Close())
	return response.StatusCode
}

// eventually waits up to a minute for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for range 6000 {
		if is() {
			return
		}
		<-ticker.C
	}
	t.Fatalf("%s: not after a minute", what)
}

// Health check node ports leave file descriptors for /healthz and the rest of the process; those above the limit are
// served when others are removed.
func TestDescriptorsAreLeft(t *testing.T) {
	const address, limit, count = "127.77.0.1", 512, 300
	limitDescriptors(t, limit)
	var mu sync.Mutex
	reports := map[string]error{}
	s, r := watching(t, Options{Address: "127.77.0.2:10256", Report: func(name types.NamespacedName, err error) {
		mu.Lock()
		defer mu.Unlock()
		if reports[name.Name] = err; err == nil {
			delete(reports, name.Name)
		}
	}})
	reported := func(name string) (string, int) {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprint(reports[name]), len(reports)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		s.run(ctx, &net.ListenConfig{}, func() ([]netip.Addr, error) { return snapshots.Addrs(address), nil })
	})
	defer running.Wait()
	defer cancel()

	node := &proxy.Node{Name: "node-1", NodePorts: proxy.NodePortAddresses{Prefixes: snapshots.Prefixes(address + "/32")}}
	ports := objects.Many(count, func(i int) *proxy.ServicePort {
		return servicePort(fmt.Sprintf("s%03d", i), v1.IPv4Protocol, uint16(10000+i), "10.0.0.1")
	})
	appliedAt(r, node, ports...)
	eventually(t, "Services above the limit are reported", func() bool { _, n := reported(""); return n == count-limit/4 })
	for at, want := range map[string]int{
		"127.77.0.2:10256/healthz":                     http.StatusOK,
		address + ":10000":                             http.StatusOK,
		fmt.Sprintf("%s:%d", address, 10000+limit/4-1): http.StatusOK,
		fmt.Sprintf("%s:%d", address, 10000+limit/4):   0,
	} {
		if got := status(t, at); got != want {
			t.Errorf("%s: got status %d, want %d", at, got, want)
		}
	}
	if err, _ := reported("s299"); !strings.HasSuffix(err, "they use 128 sockets, a quarter of RLIMIT_NOFILE: raise it") {
		t.Errorf("got report %q, want one with the number of sockets", err)
	}
	appliedAt(r, node, ports[count-limit/4:]...)
	eventually(t, "the last Services get the sockets of the first", func() bool { _, n := reported(""); return n == 0 })
	if got := status(t, fmt.Sprintf("%s:%d", address, 10000+count-1)); got != http.StatusOK {
		t.Errorf("the last port: got status %d, want %d", got, http.StatusOK)
	}
}
