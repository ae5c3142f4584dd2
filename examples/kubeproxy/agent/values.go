package agent

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// define defines the flag of a setting. Its default is the value that the setting has.
func (s *setting) define(f *pflag.FlagSet) {
	switch into := s.into.(type) {
	case *bool:
		f.BoolVar(into, s.flag, *into, s.help)
	case *int32:
		f.Int32Var(into, s.flag, *into, s.help)
	case *float32:
		f.Float32Var(into, s.flag, *into, s.help)
	case *string:
		f.StringVar(into, s.flag, *into, s.help)
	case *[]string:
		f.StringSliceVar(into, s.flag, *into, s.help)
	case *time.Duration:
		f.DurationVar(into, s.flag, *into, s.help)
	case *metav1.Duration:
		f.DurationVar(&into.Duration, s.flag, into.Duration, s.help)
	case *map[string]bool:
		f.Var(cliflag.NewMapStringBool(into), s.flag, s.help)
	case *logsapi.VerbosityLevel:
		f.VarP(logsapi.VerbosityLevelPflag(into), s.flag, s.flag, s.help)
	case pflag.Value:
		f.Var(into, s.flag, s.help)
		f.Lookup(s.flag).NoOptDefVal = "true"
	case textValue:
		f.TextVar(into, s.flag, into, s.help)
	default: // Only a file has a value with fields; nothing reads the value.
		f.String(s.flag, s.usual, s.help)
	}
	if s.usual != "" {
		f.Lookup(s.flag).DefValue = s.usual
	}
}

// wants says what a value must be; reason is the error for a type that has its own checks.
func wants(into any, reason error) error {
	switch into.(type) {
	case *bool:
		return errors.New("must be true or false")
	case *int32:
		return errors.New("must be a whole number")
	case *logsapi.VerbosityLevel:
		return errors.New("must be a whole number from 0 on")
	case *float32:
		return errors.New("must be a number")
	case *metav1.Duration, *time.Duration:
		return errors.New("must be a duration such as 1m30s")
	case *string:
		return errors.New("must be a string")
	case *[]string:
		return errors.New("must be a list of strings")
	}
	return reason
}

// decode sets a value from one in a file. It leaves the value as it is if that has another type.
func decode(into, value any) error {
	read := reflect.New(reflect.TypeOf(into).Elem())
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, read.Interface())
	}
	if _, isGates := into.(*map[string]bool); isGates && err != nil {
		return errors.New("must have fields that are true or false")
	}
	if err != nil {
		return wants(into, err)
	}
	reflect.ValueOf(into).Elem().Set(read.Elem())
	return nil
}

// value returns the value of a setting.
func (s *setting) value() any { return reflect.ValueOf(s.into).Elem().Interface() }

// text returns the value for people; it is empty for no value.
func (s *setting) text() string {
	text := fmt.Sprint(s.value())
	if d, is := s.into.(*metav1.Duration); is {
		text = d.Duration.String()
	}
	switch text = strings.Trim(text, "[]"); text {
	case "0", "0s", "false", "map", "<nil>":
		return ""
	}
	return text
}

// textValue is a value that has a text form of its own.
type textValue interface {
	encoding.TextMarshaler
	encoding.TextUnmarshaler
}

// between returns a check that a number is within two bounds.
func between(n *int32, lowest, highest int32) func() error {
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

// finite returns a check that a number is one.
func finite(x *float32) func() error {
	return func() error {
		if f := float64(*x); math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("%v: must be a number", f)
		}
		return nil
	}
}
