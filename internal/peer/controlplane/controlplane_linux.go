package controlplane

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// patience is how long a program may take until it serves.
const patience = 2 * time.Minute

// Options say how the control plane differs from the usual one.
type Options struct {
	// ServiceRange is where ClusterIPs come from: one range, or one of each family
	// separated by a comma. Empty for 10.96.0.0/16,fd00:96::/112.
	ServiceRange string
	// NodePorts is where node ports come from, such as 30000-32767, which is what
	// empty means.
	NodePorts string
	// Flags are handed to kube-apiserver after all others.
	Flags []string
}

// ControlPlane is an etcd and an API server that use it. Its methods are for the
// goroutine of the test.
type ControlPlane struct {
	t       testing.TB
	folder  string
	program string // kube-apiserver
	args    []string
	etcdURL string
	config  *rest.Config

	etcd, apiServer *process
}

// Start runs a control plane until the test ends, and waits until it is ready. A test
// on a machine that cannot run one is skipped; in CI it fails.
func Start(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	etcd, apiServer := programs(t)
	c := &ControlPlane{t: t, folder: t.TempDir(), program: apiServer}
	c.startEtcd(etcd)
	c.prepare(o)
	c.Restart()
	return c
}

// Config gives what a client needs: it may do everything, as often as it likes. Each
// caller gets one of its own.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// EtcdURL is where etcd serves clients, without encryption or authentication.
func (c *ControlPlane) EtcdURL() string { return c.etcdURL }

// Kill ends the API server as a crash does. Does nothing where none runs.
func (c *ControlPlane) Kill() {
	if c.apiServer != nil {
		c.apiServer.kill()
		c.apiServer = nil
	}
}

// Restart kills the API server if it runs, and starts it, at the same address, with
// what etcd holds. It waits until it is ready.
func (c *ControlPlane) Restart() {
	c.t.Helper()
	c.Kill()
	c.apiServer = c.run("kube-apiserver", c.program, c.args...)
	client, err := rest.HTTPClientFor(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	c.await(c.apiServer, client, c.config.Host+"/readyz")
}

func (c *ControlPlane) startEtcd(program string) {
	c.t.Helper()
	client, peer := "http://"+c.freeAddress(), "http://"+c.freeAddress()
	c.etcd = c.run("etcd", program, "--name=test", "--data-dir="+filepath.Join(c.folder, "etcd"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer,
		"--quota-backend-bytes="+strconv.Itoa(4<<30))
	c.etcdURL = client
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c.await(c.etcd, &http.Client{Transport: transport}, client+"/health")
}

// run starts a program and ends it with the test.
func (c *ControlPlane) run(name, program string, args ...string) *process {
	c.t.Helper()
	p, err := start(filepath.Join(c.folder, name+".log"), program, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(p.kill)
	return p
}

// await waits until a URL answers with 200 OK.
func (c *ControlPlane) await(p *process, client *http.Client, url string) {
	c.t.Helper()
	client.Timeout = 10 * time.Second
	limit, again := time.After(patience), time.NewTicker(50*time.Millisecond)
	defer again.Stop()
	for {
		last := get(client, url)
		if last == nil {
			return
		}
		select {
		case <-p.ended:
			c.t.Fatalf("%s ended before it served\n%s", p.command.Path, p.tail())
		case <-limit:
			c.t.Fatalf("%s does not serve after %v: %v\n%s", p.command.Path, patience, last, p.tail())
		case <-again.C:
		}
	}
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // Only the status counts.
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return nil
}

// prepare writes the files that the API server needs and decides how it is started.
func (c *ControlPlane) prepare(o Options) {
	c.t.Helper()
	token := rand.Text()
	address := c.freeAddress()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		c.t.Fatal(err)
	}
	key := c.write("service-accounts.pem", newKey(c.t))
	certificates := filepath.Join(c.folder, "certificates")
	c.args = []string{
		"--etcd-servers=" + c.etcdURL, "--bind-address=" + host, "--advertise-address=" + host, "--secure-port=" + port,
		"--cert-dir=" + certificates, "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
		"--token-auth-file=" + c.write("tokens.csv", []byte(token+",admin,admin,system:masters\n")),
		"--service-account-issuer=https://" + address,
		"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		// Nobody can be an endpoint at a loopback address.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + cmp.Or(o.ServiceRange, "10.96.0.0/16,fd00:96::/112"),
		"--service-node-port-range=" + cmp.Or(o.NodePorts, "30000-32767"),
		"--max-requests-inflight=0", "--max-mutating-requests-inflight=0", "--enable-priority-and-fairness=false",
	}
	c.args = append(c.args, o.Flags...)
	c.config = &rest.Config{
		Host: "https://" + address, BearerToken: token, QPS: -1,
		// It makes its certificate when it starts.
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
}

func (c *ControlPlane) write(name string, text []byte) (path string) {
	c.t.Helper()
	path = filepath.Join(c.folder, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// freeAddress gives an address that nobody listened at a moment ago.
func (c *ControlPlane) freeAddress() string {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		c.t.Fatal(err)
	}
	return l.Addr().String()
}

func newKey(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}
