package testenv

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// SeedVariable names the environment variable that repeats random tests.
const SeedVariable = "VIPKIT_SEED"

// CannotRun skips a test for a reason. Where the environment says CI=true, it
// fails the test: what never runs there proves nothing.
func CannotRun(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("CI must be able to run this test: %s", reason)
	}
	t.Skip(reason)
}

// Random gives random numbers, other ones in each run. Their seed is in the log
// of the test; SeedVariable sets it.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(SeedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", SeedVariable, err)
		}
	}
	t.Logf("%s=%d repeats this test", SeedVariable, seed)
	return rand.New(rand.NewPCG(seed, 0))
}
