package userspace_test

import (
	"fmt"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace"
)

// A backend is made once, handed to a proxy.Runner and closed at the end. Bad
// options are found at once.
func ExampleNew() {
	_, err := userspace.New(userspace.Options{
		Identity: backends.Identity{Name: "edge", Mark: 0x3},
		Timeouts: userspace.Timeouts{Idle: time.Hour},
	})
	fmt.Println(err)
	// Output: userspace: identity: mark 0x3 is not a single bit
}
