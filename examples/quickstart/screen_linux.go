package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// screen is where the story is told.
type screen struct {
	out    io.Writer
	colour bool
	steps  int
}

// newScreen uses colours only where somebody is looking: on a terminal, and
// unless the environment has NO_COLOR.
func newScreen(f *os.File) *screen {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return &screen{out: f, colour: err == nil && os.Getenv("NO_COLOR") == ""}
}

const (
	bold  = "1"
	green = "32"
)

func (s *screen) painted(style, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// step begins a step.
func (s *screen) step(title string) {
	s.steps++
	s.print("\n%s\n", s.painted(bold, fmt.Sprintf("%d. %s", s.steps, title)))
}

// say prints a line of a step.
func (s *screen) say(format string, args ...any) {
	s.print("   "+format+"\n", args...)
}

func (s *screen) print(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, format, args...) // Whoever stops reading wants no more.
}

// bars shows how many requests each pod answered.
func (s *screen) bars(pods []pod, counts map[string]int) {
	for _, p := range pods {
		n := counts[p.name]
		line := fmt.Sprintf("  %-6s %-12s %2d ", p.name, p.addr.Addr(), n)
		if n > 0 {
			line += s.painted(green, strings.Repeat("█", (n+1)/2))
		}
		s.say("%s", strings.TrimRight(line, " "))
	}
}
