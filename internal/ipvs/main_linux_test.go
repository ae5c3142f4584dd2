package ipvs

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/internal/netns/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }
