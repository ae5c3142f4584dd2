package testenv

import (
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// SeedVariable names the environment variable with the seed of random tests.
const SeedVariable = "VIPKIT_SEED"

// CannotRun skips a test for a reason. If the environment has CI=true, it fails the test: CI
// must run all tests.
func CannotRun(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("CI must be able to run this test: %s", reason)
	}
	t.Skip(reason)
}

// Random returns a source of random numbers, different in each run. It logs the seed, and
// takes it from SeedVariable if that is set.
func Random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(SeedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: got %q, want a number from 0 to %d, as an earlier run logged it", SeedVariable, text, uint64(math.MaxUint64))
		}
	}
	t.Logf("%s=%d repeats this test", SeedVariable, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// Rounds returns n, or a quarter of it with the flag -short of go test: how often a random test repeats
// what one round shows already with some chance.
func Rounds(n int) int {
	if testing.Short() {
		return max(1, n/4)
	}
	return n
}

// NoError ends the test with the error, if there is one.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Same reports how got differs from want, by [cmp.Diff]. The format says what they are.
func Same[T any](t testing.TB, want, got T, format string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf(format+" (-want +got):\n%s", append(args, diff)...)
	}
}
