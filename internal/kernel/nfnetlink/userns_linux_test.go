package nfnetlink

import (
	"strings"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
)

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
