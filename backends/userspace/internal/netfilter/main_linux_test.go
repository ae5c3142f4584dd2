package netfilter

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/internal/testing/netnstest"
	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m, testenv.Namespaces)) }
