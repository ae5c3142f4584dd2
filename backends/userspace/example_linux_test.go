package userspace_test

import (
	"fmt"
	"time"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/backends/userspace"
)

// A program makes one backend, passes it to a proxy.Runner, and closes it at the end. New reports
// invalid options.
func ExampleNew() {
	_, err := userspace.New(userspace.Options{
		Identity: backends.Identity{Name: "edge", Mark: 0x3},
		Timeouts: userspace.Timeouts{Idle: time.Hour},
	})
	fmt.Println(err)
	// Output: userspace: identity: mark 0x3 is not a single bit
}
