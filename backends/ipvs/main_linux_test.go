package ipvs_test

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/backends/backendtest"
)

func TestMain(m *testing.M) { os.Exit(backendtest.Main(m)) }
