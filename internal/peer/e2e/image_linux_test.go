package e2e_test

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	ocispec "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

// TestDeployment applies the folder deploy, and runs the containers of its pod as a kubelet does: the
// arguments, files, capabilities and mounts come from the API server, the program from the
// image, and nothing else of this machine is in its file system.
func TestDeployment(t *testing.T) {
	netnstest.NeedNamespaces(t)
	c := newCluster(t, "nftables")
	n := c.nodes[0]
	root := unpack(t, buildImage(t, "../../..", runtime.GOARCH))
	host, _, err := net.SplitHostPort(strings.TrimPrefix(c.cp.Config().Host, "https://"))
	testenv.NoError(t, err)
	edits := []string{
		// The certificate is not for the address of the node's relay.
		"https://api.example:6443", "https://" + apiAddress + "\n    tls-server-name: " + host,
		// The limit of conntrack holds for the whole machine.
		"clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.244.0.0/16\nconntrack: {maxPerCore: 0, min: 0}",
	}
	objects := render(t, edits...)
	for _, object := range objects {
		first := c.apply(t, object)
		if again := c.apply(t, object); again.GetResourceVersion() != first.GetResourceVersion() {
			t.Errorf("%s %s, applied again: got a change, want none", object.GetKind(), object.GetName())
		}
	}
	s := c.makeService("web", v1.ServiceSpec{})
	pod := c.podSpec(t)
	c.mount(t, root, pod)
	c.runInitContainer(n, root, pod)
	c.startContainer(n, root, pod, &pod.Containers[0])
	n.awaitSync()
	wantConfined(t, n, &pod.Containers[0])
	if got := n.logTail(); strings.Contains(got, "conntrack parameters not set") {
		t.Errorf("after the container %s, the log is\n%s\nwant all parameters to be set", pod.InitContainers[0].Name, got)
	}
	nft := netnstest.NFT(t)
	eventually(t, "the Service is in nf_tables", func() error {
		for _, ip := range s.Spec.ClusterIPs {
			if got := n.tables(nft); !strings.Contains(got, ip) {
				return fmt.Errorf("got\n%s\nwant %s", got, ip)
			}
		}
		return nil
	})
	n.stopAgent(os.Kill)

	for _, object := range render(t, append(edits, "- daemonset.yaml", "- cleanup.yaml")...) {
		c.apply(t, object)
	}
	pod = c.podSpec(t)
	c.mount(t, root, pod)
	c.runInitContainer(n, root, pod)
	n.wantNoRules(t, nft)
	c.delete(t, objects)
}

// podSpec returns the specification of the pods of the DaemonSet.
func (c *cluster) podSpec(t *testing.T) *v1.PodSpec {
	t.Helper()
	d, err := c.client.AppsV1().DaemonSets(deployNamespace).Get(t.Context(), "vipkit-kubeproxy", metav1.GetOptions{})
	testenv.NoError(t, err)
	return &d.Spec.Template.Spec
}

// mount writes what a kubelet mounts into a container.
func (c *cluster) mount(t *testing.T, root string, pod *v1.PodSpec) {
	t.Helper()
	files := map[string]string{
		"proc/none": "", "sys/none": "",
		"var/run/secrets/kubernetes.io/serviceaccount/token":  c.token,
		"var/run/secrets/kubernetes.io/serviceaccount/ca.crt": c.certificates(t),
	}
	for name, text := range c.volume(t, pod) {
		files["etc/kubeproxy/"+name] = text
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		testenv.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testenv.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

// certificates returns the certificates of the API server, which it has signed itself.
func (c *cluster) certificates(t *testing.T) string {
	t.Helper()
	// The test has started the server.
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", strings.TrimPrefix(c.cp.Config().Host, "https://"))
	testenv.NoError(t, err)
	defer func() { _ = conn.Close() }() // Nothing was written.
	encrypted, ok := conn.(*tls.Conn)
	if !ok {
		t.Fatalf("got a connection of type %T, want one of TLS", conn)
	}
	var all strings.Builder
	for _, x := range encrypted.ConnectionState().PeerCertificates {
		all.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: x.Raw}))
	}
	return all.String()
}

// runInitContainer runs the first container of a pod until it ends.
func (c *cluster) runInitContainer(n *node, root string, pod *v1.PodSpec) {
	c.t.Helper()
	c.startContainer(n, root, pod, &pod.InitContainers[0])
	if err := n.agent.Wait(); err != nil {
		c.t.Errorf("the container %s: %v\n%s", pod.InitContainers[0].Name, err, n.logTail())
	}
	n.agent = nil
}

// buildImage builds the image of a copy of the repository for some architectures, and returns its folder.
func buildImage(t *testing.T, source string, architectures ...string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "image")
	absolute, err := filepath.Abs(source)
	testenv.NoError(t, err)
	build := exec.CommandContext(t.Context(), "go", "run", "../image", "-source", absolute, "-output", folder, "-architectures", strings.Join(architectures, ","))
	build.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the image: %v\n%s", err, out)
	}
	return folder
}

// images returns the index of the image in a folder, and the images in it by architecture. It checks all digests.
func images(t *testing.T, folder string) (index ocispec.Hash, all map[string]ocispec.Image) {
	t.Helper()
	outer, err := layout.ImageIndexFromPath(folder)
	testenv.NoError(t, err)
	testenv.NoError(t, validate.Index(outer))
	list, err := outer.IndexManifest()
	testenv.NoError(t, err)
	index, all = list.Manifests[0].Digest, map[string]ocispec.Image{}
	inner, err := outer.ImageIndex(index)
	testenv.NoError(t, err)
	list, err = inner.IndexManifest()
	testenv.NoError(t, err)
	for _, d := range list.Manifests {
		all[d.Platform.Architecture], err = inner.Image(d.Digest)
		testenv.NoError(t, err)
	}
	return index, all
}

// unpack writes the file system of the image for this machine to a folder, which it returns.
func unpack(t *testing.T, image string) string {
	t.Helper()
	_, all := images(t, image)
	root := t.TempDir()
	tar := exec.CommandContext(t.Context(), "tar", "-x", "-C", root)
	files := mutate.Extract(all[runtime.GOARCH])
	defer func() { _ = files.Close() }() // It is open for reading only.
	tar.Stdin = files
	out, err := tar.CombinedOutput()
	if err != nil {
		t.Fatalf("unpacking the image: %v\n%s", err, out)
	}
	return root
}

// TestImageIsReproducible builds the image in two copies of the repository, of different times.
func TestImageIsReproducible(t *testing.T) {
	var digests [2]ocispec.Hash
	for i := range digests {
		source := t.TempDir()
		copySources(t, source, time.Unix(int64(i)*1e9, 0))
		index, all := images(t, buildImage(t, source, "amd64", "arm64"))
		digests[i] = index
		testenv.Same(t, []string{"amd64", "arm64"}, slices.Sorted(maps.Keys(all)), "architectures of the image")
	}
	if digests[0] != digests[1] {
		t.Errorf("digests of two builds: got %q, want equal ones", digests)
	}
}

// copySources copies what the program is built from: tracked files, without the folder of this module.
func copySources(t *testing.T, to string, when time.Time) {
	t.Helper()
	const from = "../../.."
	list := exec.CommandContext(t.Context(), "git", "-C", from, "ls-files", "-z", "*.go", "*.html", "*.css", "*.js", "*.yaml", "*.o", "*go.mod", "*go.sum", "*go.work", ":!internal/peer")
	names, err := list.Output()
	testenv.NoError(t, err)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(from, name))
		path := filepath.Join(to, name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			err = os.WriteFile(path, content, 0o600)
		}
		if err == nil {
			err = os.Chtimes(path, when, when)
		}
		testenv.NoError(t, err)
	}
}
