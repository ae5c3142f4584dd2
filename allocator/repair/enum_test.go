package repair

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	testenv.RoundTrip(t, Missing, Invalid)
	testenv.RoundTrip(t, Default, Mend)
}
