package nftables

import (
	"testing"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
)

func TestClose(t *testing.T) { stagetest.RunClose(t, Options{}, New) }
