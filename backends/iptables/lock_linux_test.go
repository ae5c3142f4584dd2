package iptables

import (
	"testing"

	"github.com/vipkit/vipkit/backends/internal/stagetest"
)

func TestClose(t *testing.T) {
	for _, f := range flavours() {
		t.Run(string(f), func(t *testing.T) {
			NeedPrograms(t, Options{Flavour: f})
			stagetest.RunClose(t, Options{Flavour: f}, New)
		})
	}
}
