//go:build linux

package netns_test

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
	"github.com/vipkit/vipkit/internal/testenv"
)

func TestMain(m *testing.M) {
	if act := os.Getenv(actVariable); act != "" {
		os.Exit(perform(act))
	}
	os.Exit(netnstest.Main(m, testenv.Namespaces))
}
