package rawnetlink_test

import (
	"fmt"

	"github.com/vipkit/vipkit/internal/kernel/rawnetlink"
)

// The example encodes an attribute that contains another one, and reads it.
func Example() {
	b, at := rawnetlink.Nest(nil, 1)
	b = rawnetlink.AppendString(b, 2, "lo")
	rawnetlink.Close(b, at)
	outer := rawnetlink.Attrs(b)
	fmt.Println(rawnetlink.Attrs(outer.Find(1)).Text(2))
	// Output: lo
}
