package repair

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	testenv.RoundTrip(t, Missing, Invalid)
	testenv.RoundTrip(t, Default, Mend)
}
