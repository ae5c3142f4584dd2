package nfnetlink

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }

// enterNamespace moves the test's thread into a new network namespace. The thread stays
// locked, so it and the namespace end with the goroutine of the test.
func enterNamespace(t testing.TB) {
	t.Helper()
	netnstest.NeedNamespaces(t)
	runtime.LockOSThread()
	testenv.NoError(t, unix.Unshare(unix.CLONE_NEWNET))
}

// openInNamespace calls enterNamespace and opens a connection there.
func openInNamespace(t testing.TB) *Conn {
	t.Helper()
	enterNamespace(t)
	return open(t)
}

func open(t testing.TB) *Conn {
	t.Helper()
	c, err := Open()
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	testenv.CloseAtEnd(t, c)
	return c
}

// tryNft runs nft in the namespace of the test and returns what it printed.
func tryNft(t testing.TB, stdin string, args ...string) (string, error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(netnstest.NFT(t), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("nft %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

func nft(t testing.TB, args ...string) string {
	t.Helper()
	out, err := tryNft(t, "", args...)
	testenv.NoError(t, err)
	return out
}

func loadNft(t testing.TB, ruleset string) {
	t.Helper()
	if _, err := tryNft(t, ruleset, "-f", "-"); err != nil {
		t.Fatalf("%v\nloading:\n%s", err, ruleset)
	}
}

func commit(t testing.TB, c *Conn, b *Batch) {
	t.Helper()
	if err := c.Commit(t.Context(), b); err != nil {
		t.Fatalf("Commit: %v", err)
	}
}

// The tests also pass as root of a user namespace, with the buffer sizes that the kernel
// allows there.
func TestInUserNamespace(t *testing.T) {
	t.Parallel()
	cmd := netnstest.Unprivileged(t, "-test.v", "-test.timeout=2m", "-test.run=^Test(HugeBatch|Nft|Sets|CommitErrors|MaxBatch)")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the tests in a user namespace: %v\n%s", err, out)
	}
	for _, want := range []string{"--- PASS: TestHugeBatch", "--- PASS: TestNftListsAndLoadsAgain"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output in a user namespace: got no %q:\n%s", want, out)
		}
	}
	t.Logf("%s", out)
}
