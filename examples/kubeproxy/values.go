package main

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What a value of a type must be.
var (
	errNoBool     = errors.New("must be true or false")
	errNoInt      = errors.New("must be a whole number")
	errNoFloat    = errors.New("must be a number")
	errNoString   = errors.New("must be a string")
	errNoDuration = errors.New("must be a duration such as 1m30s")
	errNoList     = errors.New("must be a list of strings")
)

// duration is a duration that is written like 1m30s.
type duration struct{ time.Duration }

// parse sets a value from the text of a flag.
func parse(into any, text string) (err error) {
	switch into := into.(type) {
	case *string:
		*into = text
	case *any:
		*into = text
	case *bool:
		*into, err = strconv.ParseBool(text)
		err = orElse(err, errNoBool)
	case *int:
		var n int64
		n, err = strconv.ParseInt(text, 0, 32)
		*into, err = int(n), orElse(err, errNoInt)
	case *float64:
		*into, err = strconv.ParseFloat(text, 64)
		if math.IsNaN(*into) || math.IsInf(*into, 0) {
			err = errNoFloat
		}
		err = orElse(err, errNoFloat)
	case *time.Duration:
		*into, err = time.ParseDuration(text)
		err = orElse(err, errNoDuration)
	case *duration:
		return parse(&into.Duration, text)
	case *[]string: // a flag that is repeated adds to the list, as in kube-proxy
		*into = append(*into, strings.FieldsFunc(text, func(c rune) bool { return c == ',' })...)
	case encoding.TextUnmarshaler:
		return into.UnmarshalText([]byte(text))
	}
	return err
}

func orElse(err, better error) error {
	if err != nil {
		return better
	}
	return nil
}

// decode sets a value from one in a file.
func decode(into, value any) error {
	switch into := into.(type) {
	case *any:
		*into = value
		return nil
	case *bool:
		is, ok := value.(bool)
		*into = is
		return unless(ok, errNoBool)
	case *[]string:
		list, ok := value.([]any)
		*into = nil
		for _, x := range list {
			text, isText := x.(string)
			*into, ok = append(*into, text), ok && isText
		}
		return unless(ok, errNoList)
	case *int:
		n, ok := value.(json.Number)
		return errors.Join(unless(ok, errNoInt), parseIf(ok, into, n.String()))
	case *float64:
		n, ok := value.(json.Number)
		return errors.Join(unless(ok, errNoFloat), parseIf(ok, into, n.String()))
	case *duration:
		text, ok := value.(string)
		return errors.Join(unless(ok, errNoDuration), parseIf(ok, into, text))
	case *featureGates:
		return into.decode(value)
	}
	text, ok := value.(string)
	return errors.Join(unless(ok, errNoString), parseIf(ok, into, text))
}

func unless(ok bool, err error) error {
	if ok {
		return nil
	}
	return err
}

func parseIf(ok bool, into any, text string) error {
	if !ok {
		return nil
	}
	return parse(into, text)
}

// value returns the value of a setting, in the form that a file has it.
func (s *setting) value() any {
	switch into := s.into.(type) {
	case *string:
		return *into
	case *bool:
		return *into
	case *int:
		return *into
	case *float64:
		return *into
	case *time.Duration:
		return into.String()
	case *duration:
		return into.String()
	case *[]string:
		return *into
	case *any:
		return *into
	case *featureGates:
		return *into
	}
	return fmt.Sprint(s.into)
}

// flagText returns the value as the flag takes it.
func (s *setting) flagText() string {
	switch value := s.value().(type) {
	case []string:
		return strings.Join(value, ",")
	case featureGates:
		var pairs []string
		for _, name := range slices.Sorted(maps.Keys(value)) {
			pairs = append(pairs, fmt.Sprintf("%s=%t", name, value[name]))
		}
		return strings.Join(pairs, ",")
	default:
		return fmt.Sprint(value)
	}
}

// text returns the value for people; it is empty for no value.
func (s *setting) text() string {
	switch text := strings.Trim(fmt.Sprint(s.value()), "[]"); text {
	case "0", "0s", "false", "map", "<nil>":
		return ""
	default:
		return text
	}
}

// kind returns what follows the name of the flag in -help.
func (s *setting) kind() string {
	switch s.into.(type) {
	case *bool, *versionForm:
		return ""
	case *int, *float64:
		return " number"
	case *duration, *time.Duration:
		return " duration"
	case *[]string, *featureGates:
		return " list"
	}
	return " text"
}

// printable returns a name as it is, or in quotes if it has characters that a terminal would not print.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// between returns a check that a number is within two bounds.
func between(n *int, lowest, highest int) func() error {
	return func() error {
		switch {
		case lowest == 0 && *n < 0:
			return fmt.Errorf("%d: must be greater than or equal to 0", *n)
		case *n < lowest || *n > highest:
			return fmt.Errorf("%d: must be within the range [%d, %d]", *n, lowest, highest)
		}
		return nil
	}
}

// notNegative returns a check of a duration.
func notNegative(d *duration) func() error {
	return func() error {
		if d.Duration < 0 {
			return fmt.Errorf("%v: must be greater than or equal to 0", d)
		}
		return nil
	}
}
