package kernelspace_test

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vipkit/vipkit/backends/kernelspace/hcn"
	"github.com/vipkit/vipkit/internal/testing/testenv"
	"github.com/vipkit/vipkit/proxy"
)

// While the process was not running, a Service went: its load balancer goes if the state file has
// its ID. Without the file, or with a damaged one, nothing is wiped; what is needed is adopted.
func TestRestartWithStateFile(t *testing.T) {
	for what, c := range map[string]struct {
		spoil func(t *testing.T, path string)
		stays bool
	}{
		"whole":           {func(*testing.T, string) {}, false},
		"torn at the end": {func(t *testing.T, path string) { edit(t, path, func(b []byte) []byte { return b[:len(b)-3] }) }, false},
		"ID damaged": {func(t *testing.T, path string) {
			edit(t, path, func(b []byte) []byte { b[bytes.LastIndex(b, []byte("\n-"))-20] ^= 1; return b })
		}, true},
		"other content": {func(t *testing.T, path string) { edit(t, path, func([]byte) []byte { return []byte("\x00\n\n{}") }) }, true},
		"empty":         {func(t *testing.T, path string) { edit(t, path, func([]byte) []byte { return nil }) }, true},
		"lost":          {func(_ *testing.T, path string) { _ = os.Remove(path) }, true},
	} {
		m := newMachine(t, newest())
		m.apply(service(1, local(1)))
		keep := m.Dump()
		m.apply(service(1, local(1)), service(2, local(1))) // the last lines of the file are those of service 2
		gone := strings.ReplaceAll(keep, "10.96.0.1", "10.96.0.2")
		c.spoil(t, m.options.StateFile)
		m.restart()
		writes := m.writes(func() { m.apply(service(1, local(1))) })
		if c.stays {
			m.want(what, keep, gone)
		} else {
			m.want(what, keep)
		}
		if want := map[bool]int{true: 0, false: 1}[c.stays]; writes != want {
			t.Errorf("%s: got %d writes, want %d", what, writes, want)
		}
		// Adopted load balancers are the backend's own from then on.
		m.restart()
		m.apply()
		if c.stays {
			m.want(what+": no Service", gone)
		} else {
			m.want(what + ": no Service")
		}
	}
}

func edit(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	text, err := os.ReadFile(path)
	testenv.NoError(t, err)
	testenv.NoError(t, os.WriteFile(path, change(bytes.Clone(text)), 0o600))
}

// The file does not grow without limit, and a folder that is missing is a problem of the node, not
// of Services.
func TestStateFile(t *testing.T) {
	m := newMachine(t, noModify())
	for i := range 50 {
		m.apply(service(1, local(1+i%2)))
	}
	m.resync()
	m.resync()
	text, err := os.ReadFile(m.options.StateFile)
	testenv.NoError(t, err)
	if n := bytes.Count(text, []byte("\n")); n != 1 {
		t.Errorf("after two lists: got %d lines, want one for each load balancer:\n%s", n, text)
	}
	files, err := os.ReadDir(filepath.Dir(m.options.StateFile))
	if err != nil || len(files) != 1 {
		t.Errorf("files beside the state file: got %v, %v, want none", files, err)
	}
	m.options.StateFile = filepath.Join(t.TempDir(), "missing", "state")
	m.restart()
	m.apply(service(1, local(1)))
	if p := m.problems(); len(p) != 1 || !strings.Contains(p[0].Error(), "missing") {
		t.Errorf("missing folder: got problems %v, want one", p)
	}
}

// A state file that cannot be read for some time is not overwritten: afterwards, load balancers are the
// backend's own again, those in the file and those that were made meanwhile.
func TestStateFileThatCannotBeRead(t *testing.T) {
	m := newMachine(t, newest())
	m.apply(service(1, local(1)), service(2, local(1)))
	file := m.options.StateFile
	hide := func(from, to string) {
		t.Helper()
		testenv.NoError(t, os.Rename(from, to))
	}
	hide(file, file+".hidden")
	if err := os.Mkdir(file, 0o700); err != nil { // reading it is an error, as with a lock or a full system
		t.Fatal(err)
	}
	m.restart()
	m.apply(service(3, local(1)))
	if p := m.problems(); len(p) != 1 || !strings.Contains(p[0].Error(), file) {
		t.Errorf("file that cannot be read: got problems %v, want one", p)
	}
	if err := m.backend.Cleanup(t.Context()); err == nil {
		t.Error("file that cannot be read: Cleanup: got no error, want one")
	}
	m.apply(service(3, local(1)))
	if err := os.Remove(file); err != nil {
		t.Fatalf("the file was changed: %v", err)
	}
	hide(file+".hidden", file)
	m.resync()
	if p := m.problems(); len(p) != 0 {
		t.Errorf("file is there again: got problems %v, want none", p)
	}
	const line = "load balancer 10.96.0.3:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to local 10.0.0.1"
	m.want("file is there again", line)
	m.restart()
	m.apply()
	m.want("no Service")
}

// Another proxy has left objects that HNS holds without names. What fits is adopted without a write,
// what differs is changed, and what no Service needs stays.
func TestTakeover(t *testing.T) {
	m := newMachine(t, newest())
	endpoint := func(i int) string {
		id, err := m.CreateEndpoint(t.Context(), hcn.Endpoint{NetworkID: m.network, Addresses: []netip.Addr{elsewhere(i)}, Remote: true, MAC: "02-11-0A-01-00-09"})
		testenv.NoError(t, err)
		return id
	}
	balancer := func(i int, port uint16, id string) {
		b := hcn.LoadBalancer{
			Endpoints: []string{id}, SourceVIP: nodeAddr, FrontendVIPs: []netip.Addr{clusterIP(i)},
			PortMappings: []hcn.PortMapping{{Protocol: 6, InternalPort: port, ExternalPort: 80}},
		}
		if _, err := m.CreateLoadBalancer(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	balancer(1, 8080, endpoint(1))
	balancer(2, 9090, endpoint(2))
	balancer(3, 8080, endpoint(3))
	all := []*proxy.ServicePort{service(1, remote(1)), service(2, remote(2))}
	if n := m.writes(func() { m.apply(all...) }); n != 1 {
		t.Errorf("takeover: got %d writes, want 1 for the one that differs", n)
	}
	const rest = "load balancer 10.96.0.3:80/6->8080 distribution 0 flags 0 flags 0 source 172.18.0.2 to remote 10.1.0.3"
	if !strings.Contains(m.Dump(), rest) {
		t.Errorf("got\n%s\nwant the load balancer that no Service needs, too", m.Dump())
	}
	m.apply()
	m.want("no Service", rest, "endpoint remote 10.1.0.3 mac 02-11-0A-01-00-09")
}

// Cleanup removes what the backend has made, also in an earlier process, and nothing else; twice is
// no error. What HNS refuses to delete is an error, and a second Cleanup removes it.
func TestCleanup(t *testing.T) {
	m := newMachine(t, newest())
	foreign := hcn.LoadBalancer{
		Endpoints: []string{m.Endpoints()[0].ID}, FrontendVIPs: []netip.Addr{clusterIP(99)},
		PortMappings: []hcn.PortMapping{{Protocol: 17, InternalPort: 1, ExternalPort: 1}},
	}
	if _, err := m.CreateLoadBalancer(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	before := m.Dump()
	m.apply(with(service(1, local(1), remote(1)), frontend(proxy.NodePort, "0.0.0.0", 30080)), service(2, remote(1)))
	m.restart()
	m.fail(1, denied(), "DeleteLoadBalancer")
	if err := m.backend.Cleanup(t.Context()); err == nil {
		t.Error("Cleanup while a delete fails: got no error, want one")
	}
	for range 2 {
		if err := m.backend.Cleanup(t.Context()); err != nil {
			t.Errorf("Cleanup: %v", err)
		}
		m.want("after Cleanup", before)
		if _, err := os.Stat(m.options.StateFile); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("state file after Cleanup: got error %v, want %v", err, fs.ErrNotExist)
		}
	}
}

// Cleanup removes every own endpoint of an address, although a key names one of them. Without its network, own endpoints
// of all networks count.
func TestCleanupOfOneAddress(t *testing.T) {
	m := newMachine(t, newest())
	before := m.Dump()
	for _, network := range []string{m.network, m.AddNetwork(hcn.Network{Name: "other", Type: "L2Bridge"})} {
		_, err := m.CreateEndpoint(t.Context(), hcn.Endpoint{
			Name: "vipkit/pod/10.1.0.1", NetworkID: network, Addresses: []netip.Addr{elsewhere(1)}, Remote: true,
		})
		testenv.NoError(t, err)
	}
	m.options.Network = "missing"
	m.restart()
	testenv.NoError(t, m.backend.Cleanup(t.Context()))
	m.want("after Cleanup", before)
}

// An endpoint that another proxy has made goes when no Service needs it, as the backend's own ones do.
func TestAdoptedEndpointIsRemoved(t *testing.T) {
	m := newMachine(t, newest())
	id, err := m.CreateEndpoint(t.Context(), hcn.Endpoint{NetworkID: m.network, Addresses: []netip.Addr{elsewhere(1)}, Remote: true})
	testenv.NoError(t, err)
	m.apply(service(1, remote(1)))
	if now := m.ids()["10.1.0.1"]; now != id {
		t.Errorf("adopted: got endpoint %s, want %s", now, id)
	}
	m.resync()
	m.apply()
	m.want("no Service")
}
