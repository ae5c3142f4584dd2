package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// screen prints the story.
type screen struct {
	out    io.Writer
	colour bool
	width  int // of a line; 0 for any
	steps  int
	// lines are the reader's, each of which begins a step; nil if none is awaited.
	lines <-chan struct{}
}

// newScreen uses colours only on a terminal, and unless the environment has NO_COLOR.
func newScreen(f *os.File) *screen {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return &screen{out: f, colour: err == nil && os.Getenv("NO_COLOR") == "", width: width(f)}
}

// width returns the width of a line: COLUMNS, or else that of the terminal.
func width(f *os.File) int {
	const least, usual = 20, 100
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return max(n, least)
	}
	if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		return max(int(size.Col), least)
	}
	return usual
}

// stepBy makes each step wait for a line of the reader. After the last line no step waits.
func (s *screen) stepBy(in io.Reader) {
	lines := make(chan struct{})
	s.lines = lines
	go func() { // It ends with the program: reading cannot be interrupted.
		defer close(lines)
		for scanner := bufio.NewScanner(in); scanner.Scan(); {
			lines <- struct{}{}
		}
	}()
}

// pause waits until the reader wants the next step.
func (s *screen) pause(ctx context.Context) error {
	if s.lines == nil {
		return nil
	}
	s.print("\n   %s", s.painted(bold, "Press Enter to go on."))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case _, ok := <-s.lines:
		if !ok {
			s.lines = nil
		}
		return nil
	}
}

const (
	bold  = "1"
	green = "32"
)

func (s *screen) painted(style, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// step begins a step.
func (s *screen) step(title string) {
	s.steps++
	s.heading(fmt.Sprintf("%d. %s", s.steps, title))
}

// heading prints a title after an empty line.
func (s *screen) heading(title string) {
	lines := s.wrap(title)
	for i, line := range lines {
		lines[i] = s.painted(bold, line)
	}
	s.print("\n%s\n", strings.Join(lines, "\n"))
}

// say prints a sentence of a step, in as many lines as it needs.
func (s *screen) say(format string, args ...any) {
	for _, line := range s.wrap("   " + fmt.Sprintf(format, args...)) {
		s.print("%s\n", line)
	}
}

// bar prints a text and a bar for a number, half as many columns as the number. On a narrow screen, the
// bar for the highest number fits after the text, and others are shorter in proportion; or there is none.
func (s *screen) bar(text string, number, highest int) {
	whole := (highest + 1) / 2
	if s.width > 0 {
		whole = min(whole, max(0, s.width-visible("   "+text+" ")))
	}
	columns := (number*whole + highest - 1) / highest
	s.say("%s", strings.TrimRight(text+" "+s.painted(green, strings.Repeat("█", columns)), " "))
}

// wrap splits a text at spaces into lines that are not wider than the screen.
func (s *screen) wrap(text string) (lines []string) {
	indent := text[:len(text)-len(strings.TrimLeft(text, " -"))]
	indent = strings.ReplaceAll(indent, "-", " ")
	for s.width > 0 && visible(text) > s.width {
		end := lastSpace(text, s.width)
		if end <= len(indent) {
			break // One word does not fit.
		}
		lines = append(lines, strings.TrimRight(text[:end], " "))
		text = indent + strings.TrimLeft(text[end:], " ")
	}
	return append(lines, text)
}

// visible returns how many columns a text has, without escape codes of colours.
func visible(text string) (n int) {
	for rest := range strings.SplitSeq(text, "\x1b[") {
		if n > 0 || strings.HasPrefix(text, "\x1b[") {
			if _, after, ok := strings.Cut(rest, "m"); ok {
				rest = after
			}
		}
		n += utf8.RuneCountInString(rest)
	}
	return n
}

// lastSpace returns where the last space is up to which a text fits; -1 if there is none.
func lastSpace(text string, width int) int {
	last := -1
	for i, c := range text {
		if c == ' ' && visible(text[:i]) <= width {
			last = i
		}
	}
	return last
}

func (s *screen) print(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, format, args...) // An error means that the reader has gone.
}
