package agent

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// wants says what a value must be, for errors.
func wants(into any) error {
	switch into.(type) {
	case *metav1.Duration, *time.Duration:
		return errors.New("must be a duration such as 1m30s")
	case *[]string:
		return errors.New("must be a list of strings")
	case *map[string]bool:
		return errors.New("must have fields that are true or false")
	}
	switch reflect.TypeOf(into).Elem().Kind() {
	case reflect.Bool:
		return errors.New("must be true or false")
	case reflect.Int, reflect.Int32:
		return errors.New("must be a whole number")
	case reflect.Uint32:
		return errors.New("must be a whole number from 0 on")
	case reflect.Float32:
		return errors.New("must be a number")
	default:
		return errors.New("must be a string")
	}
}

// parse sets a value from the text of a flag.
func parse(into any, text string) (err error) {
	switch into := into.(type) {
	case *any:
		*into = text
	case *time.Duration:
		*into, err = time.ParseDuration(text)
	case *metav1.Duration:
		into.Duration, err = time.ParseDuration(text)
	case *[]string: // a flag that is repeated adds to the list, as in kube-proxy
		*into = append(*into, strings.FieldsFunc(text, func(c rune) bool { return c == ',' })...)
	case encoding.TextUnmarshaler:
		return into.UnmarshalText([]byte(text))
	default:
		err = parseKind(reflect.ValueOf(into).Elem(), text)
	}
	if err != nil {
		return wants(into)
	}
	return nil
}

// parseKind sets a value of a simple kind.
func parseKind(into reflect.Value, text string) (err error) {
	switch into.Kind() {
	case reflect.Bool:
		var on bool
		on, err = strconv.ParseBool(text)
		into.SetBool(on)
	case reflect.Int, reflect.Int32:
		var n int64
		n, err = strconv.ParseInt(text, 0, 32)
		into.SetInt(n)
	case reflect.Uint32:
		var n uint64
		n, err = strconv.ParseUint(text, 0, 31)
		into.SetUint(n)
	case reflect.Float32:
		var x float64
		if x, err = strconv.ParseFloat(text, 32); math.IsNaN(x) || math.IsInf(x, 0) {
			err = strconv.ErrRange
		}
		into.SetFloat(x)
	default:
		into.SetString(text)
	}
	return err
}

// decode sets a value from one in a file.
func decode(into, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return wants(into)
	}
	return nil
}

// value returns the value of a setting.
func (s *setting) value() any {
	if d, is := s.into.(*metav1.Duration); is {
		return d.Duration
	}
	return reflect.ValueOf(s.into).Elem().Interface()
}

// flagText returns the value as the flag takes it.
func (s *setting) flagText() string {
	switch into := s.into.(type) {
	case *[]string:
		return strings.Join(*into, ",")
	case *map[string]bool:
		return cliflag.NewMapStringBool(into).String()
	}
	return fmt.Sprint(s.value())
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

// flagValue is a setting as a flag has it.
type flagValue struct{ *setting }

func (f flagValue) Set(text string) error { return parse(f.into, text) }

func (f flagValue) String() string { return f.text() }

// Type is what follows the name of the flag in -help.
func (f flagValue) Type() string {
	switch f.into.(type) {
	case *bool, *versionForm:
		return "bool"
	case *int, *int32, *float32, *logsapi.VerbosityLevel:
		return "number"
	case *metav1.Duration, *time.Duration:
		return "duration"
	case *[]string:
		return "list"
	}
	return "text"
}

// printable returns a name as it is, or in quotes if it has characters that a terminal would not print.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
		return quoted
	}
	return name
}

// between returns a check that a number is within two bounds.
func between[T ~int | ~int32](n *T, lowest, highest T) func() error {
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
func notNegative(d *metav1.Duration) func() error {
	return func() error {
		if d.Duration < 0 {
			return fmt.Errorf("%v: must be greater than or equal to 0", d.Duration)
		}
		return nil
	}
}
