package allocatorcli_test

import (
	"context"
	"os"

	"github.com/vipkit/vipkit/examples/allocator/allocatorcli"
)

func Example() {
	p := allocatorcli.Program{Name: "allocator", Kinds: []allocatorcli.Kind{allocatorcli.Memory()}}
	p.Run(context.Background(), []string{"-range", "10.96.0.0/29", "show"}, allocatorcli.Streams{Out: os.Stdout, Err: os.Stderr})
	// Output:
	// 10.96.0.0/29: 6 keys, 0 taken, 6 free
	//   upper band, 10.96.0.1 to 10.96.0.6
	//     ······
}
