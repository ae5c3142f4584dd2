package main

import (
	"os"
	"testing"

	"github.com/vipkit/vipkit/backends/backendtest"
	"github.com/vipkit/vipkit/internal/testing/agenttest"
)

func TestMain(m *testing.M) {
	os.Exit(agenttest.Main(run, func() int { return backendtest.Main(m) }))
}
