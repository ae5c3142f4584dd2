package rangemap_test

import (
	"fmt"

	"github.com/vipkit/vipkit/allocator/rangemap"
)

func Example() {
	// What etcd has at /registry/ranges/servicenodeports.
	object := rangemap.Map{Range: "30000-32767", Data: []byte{1, 3}}.Marshal()
	m, err := rangemap.Unmarshal(object)
	if err != nil {
		fmt.Println(err)
		return
	}
	keys, err := m.Keys()
	fmt.Println(m.Range, keys, err)
	// Output: 30000-32767 [30000 30001 30008] <nil>
}
