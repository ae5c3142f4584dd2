package endpoints

import "fmt"

func localFallbacks() [3]string { return [3]string{"terminating", "none", "cluster"} }

// String returns "terminating", "none" or "cluster".
func (f LocalFallback) String() string {
	if names := localFallbacks(); int(f) < len(names) {
		return names[f]
	}
	return fmt.Sprintf("LocalFallback(%d)", uint8(f))
}

// MarshalText returns what String returns.
func (f LocalFallback) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText parses what String returns. Other texts are errors.
func (f *LocalFallback) UnmarshalText(text []byte) error {
	names := localFallbacks()
	for i, name := range names {
		if name == string(text) {
			*f = LocalFallback(i)
			return nil
		}
	}
	return fmt.Errorf("%.40q: want one of %q", text, names)
}
