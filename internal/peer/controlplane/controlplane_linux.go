package controlplane

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/vipkit/vipkit/internal/testing/servertest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// Options are the options of a control plane; the zero value of each field is its default.
type Options struct {
	// ServiceRange is the range of ClusterIPs: one range, or one of each family separated
	// by a comma; 10.96.0.0/16,fd00:96::/112 by default.
	ServiceRange string
	// Flags are further flags of kube-apiserver, after all others.
	Flags []string
}

// ControlPlane is an etcd and an API server that use it. Its methods are for the
// goroutine of the test.
type ControlPlane struct {
	t       testing.TB
	folder  string
	program string // kube-apiserver
	args    []string
	config  *rest.Config
	etcd    *servertest.Etcd
	server  *servertest.Process // nil while none runs
}

// Start runs a control plane until the test ends, and waits until it is ready. A test
// on a machine that cannot run one is skipped; in CI it fails.
func Start(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	c := &ControlPlane{t: t, etcd: servertest.StartEtcd(t), folder: t.TempDir(), program: buildAPIServer(t)}
	c.prepare(o)
	c.Restart()
	return c
}

// Config returns the configuration of a client with all permissions and no rate limit. Each
// caller gets a copy.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Kill ends the API server like a crash. It does nothing if none runs.
func (c *ControlPlane) Kill() {
	if c.server != nil {
		c.server.Kill()
		c.server = nil
	}
}

// Restart kills the API server if it runs, starts it at the same address with the data in
// etcd, and waits until it is ready.
func (c *ControlPlane) Restart() {
	c.t.Helper()
	c.Kill()
	c.server = servertest.Run(c.t, filepath.Join(c.folder, "log"), c.program, c.args...)
	client, err := rest.HTTPClientFor(c.config)
	testenv.NoError(c.t, err)
	defer client.CloseIdleConnections()
	c.server.Await(c.t, client, c.config.Host+"/readyz")
}

// prepare writes the files of the API server and sets its arguments.
func (c *ControlPlane) prepare(o Options) {
	c.t.Helper()
	token := rand.Text()
	address := servertest.FreeAddress(c.t)
	host, port, err := net.SplitHostPort(address)
	testenv.NoError(c.t, err)
	key := c.write("service-accounts.pem", newKey(c.t))
	certificates := filepath.Join(c.folder, "certificates")
	c.args = []string{
		"--etcd-servers=" + c.etcd.URL, "--bind-address=" + host, "--advertise-address=" + host, "--secure-port=" + port,
		"--cert-dir=" + certificates, "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
		"--token-auth-file=" + c.write("tokens.csv", []byte(token+",admin,admin,system:masters\n")),
		"--service-account-issuer=https://" + address,
		"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		// A loopback address cannot be an endpoint.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + cmp.Or(o.ServiceRange, "10.96.0.0/16,fd00:96::/112"),
		"--max-requests-inflight=0", "--max-mutating-requests-inflight=0", "--enable-priority-and-fairness=false",
	}
	c.args = append(c.args, o.Flags...)
	c.config = &rest.Config{
		Host: "https://" + address, BearerToken: token, QPS: -1,
		// The API server makes its certificate when it starts.
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
}

func (c *ControlPlane) write(name string, text []byte) (path string) {
	c.t.Helper()
	path = filepath.Join(c.folder, name)
	testenv.NoError(c.t, os.WriteFile(path, text, 0o600))
	return path
}

func newKey(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testenv.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	testenv.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}
