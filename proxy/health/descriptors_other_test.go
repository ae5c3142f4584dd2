//go:build !unix

package health

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func withFewDescriptors(t *testing.T) {
	t.Helper()
	testenv.CannotRun(t, "there is no limit of file descriptors")
}

func withManyDescriptors(*testing.T) {}
