package enum

import (
	"fmt"
	"strings"
)

// Value is a value of an enumeration. The values are consecutive from 0, or from 1 if 0
// means none; String returns a name that no other value has.
type Value interface {
	~uint8
	fmt.Stringer
}

// Name returns the name of a value, for String; names[v] is the name of v. A
// value without a name is "?".
func Name[T ~uint8](v T, names ...string) string {
	if int(v) >= len(names) {
		return "?"
	}
	return names[v]
}

// Marshal returns the name of a value, for MarshalText. A value above the last one is an error.
func Marshal[T Value](v, last T) ([]byte, error) {
	if v > last {
		return nil, fmt.Errorf("%T has no value %d", v, uint8(v))
	}
	return []byte(v.String()), nil
}

// Unmarshal sets v to the value with a name, for UnmarshalText. An unknown name is an error
// that names all known ones, and does not change v.
func Unmarshal[T Value](v *T, last T, text []byte) error {
	var known []string
	for x := range last + 1 {
		name := x.String()
		if name == string(text) {
			*v = x
			return nil
		}
		known = append(known, name)
	}
	return fmt.Errorf("%.40q: want one of %s", text, strings.Join(known, ", "))
}
