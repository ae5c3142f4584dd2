package enum_test

import (
	"testing"

	"github.com/vipkit/vipkit/internal/enum"
)

type colour uint8

func (c colour) String() string { return [...]string{"red", "green", "blue", "?"}[c&3] }

const blue colour = 2

func TestMarshal(t *testing.T) {
	if got, err := enum.Marshal(blue, blue); string(got) != "blue" || err != nil {
		t.Errorf("Marshal(blue): got %q, %v", got, err)
	}
	const want = "enum_test.colour has no value 3"
	if got, err := enum.Marshal(colour(3), blue); got != nil || err == nil || err.Error() != want {
		t.Errorf("Marshal(3): got %q, error %v, want %s", got, err, want)
	}
}

func TestUnmarshal(t *testing.T) {
	var c colour
	if err := enum.Unmarshal(&c, blue, []byte("blue")); c != blue || err != nil {
		t.Errorf("Unmarshal(blue): got %v, %v", c, err)
	}
	const want = `"?": want one of red, green, blue`
	if err := enum.Unmarshal(&c, blue, []byte("?")); c != blue || err == nil || err.Error() != want {
		t.Errorf("Unmarshal(?): got %v, error %v, want %s, and the value unchanged", c, err, want)
	}
}
