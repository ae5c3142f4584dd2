package nfnetlink

import (
	"bytes"
	"context"
	"runtime"
	"testing"
	"time"
)

// What works for root must work as root of a user namespace, with the buffers
// that the kernel allows there.
func TestInUserNamespace(t *testing.T) {
	if inUserNamespace() {
		t.Skip("all tests run in a user namespace already")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	runtime.LockOSThread() // the child ends with the thread that started it
	defer runtime.UnlockOSThread()
	cmd := userNamespaceCommand("-test.v", "-test.run", "^Test(HugeBatch|Nft|Sets|CommitErrors|MaxBatch)")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		lacking(t, "make a user namespace: %v", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the tests in a user namespace: %v\n%s", err, out.Bytes())
	}
	for _, want := range []string{"--- PASS: TestHugeBatch", "--- PASS: TestNftListsAndLoadsAgain"} {
		if !bytes.Contains(out.Bytes(), []byte(want)) {
			t.Errorf("the output in a user namespace lacks %q:\n%s", want, out.Bytes())
		}
	}
	t.Logf("%s", out.Bytes())
}
