package backends

import (
	"testing"

	"github.com/vipkit/vipkit/internal/testing/testenv"
)

func TestEnumerationsInJSON(t *testing.T) {
	testenv.RoundTrip(t, Add, Remove)
}
