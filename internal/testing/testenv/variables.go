package testenv

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Flag reports whether an environment variable is 1. It ends the test if the variable has another
// value, such as one that is meant to switch something off.
func Flag(t testing.TB, variable string) bool {
	t.Helper()
	switch text := os.Getenv(variable); text {
	case "":
		return false
	case "1":
		return true
	default:
		t.Fatalf("%s: got %q, want 1 or nothing", variable, text)
		return false
	}
}

// Count returns the number in an environment variable, or another one if the variable is not set.
// It ends the test if the value is not a number from 1 on.
func Count(t testing.TB, variable string, byDefault int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s: got %q, want a number from 1 on", variable, text)
	}
	return n
}

// Names returns the names in an environment variable, with spaces or commas between them. It ends
// the test if one of them is not known.
func Names(t testing.TB, variable string, known []string) []string {
	t.Helper()
	names := strings.FieldsFunc(os.Getenv(variable), func(r rune) bool { return r == ' ' || r == ',' })
	for _, name := range names {
		if !slices.Contains(known, name) {
			t.Fatalf("%s: unknown name %q, want some of %q", variable, name, known)
		}
	}
	return names
}
