package endpoints

import "testing"

func TestLocalFallbackText(t *testing.T) {
	for _, f := range []LocalFallback{FallbackTerminating, FallbackNone, FallbackCluster} {
		got := FallbackCluster + 1
		text, err := f.MarshalText()
		if err == nil {
			err = got.UnmarshalText(text)
		}
		if err != nil || got != f {
			t.Errorf("%v: got %v, error %v after a round trip", f, got, err)
		}
	}
	for _, text := range []string{"", "Cluster", "LocalFallback(3)"} {
		got := FallbackNone
		if err := got.UnmarshalText([]byte(text)); err == nil || got != FallbackNone {
			t.Errorf("%q: got %v, error %v, want an error and no change", text, got, err)
		}
	}
	if got := (FallbackCluster + 1).String(); got != "LocalFallback(3)" {
		t.Errorf("an unknown value: got %q", got)
	}
}
