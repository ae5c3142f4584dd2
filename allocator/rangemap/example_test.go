package rangemap_test

import (
	"fmt"

	"github.com/vipkit/vipkit/allocator/rangemap"
)

func Example() {
	// What "etcdctl get /registry/ranges/servicenodeports" gives, as JSON.
	m, err := rangemap.Unmarshal([]byte(`{"kind":"RangeAllocation","apiVersion":"v1","range":"30000-32767","data":"AQM="}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	keys, err := m.Keys()
	fmt.Println(m.Range, keys, err)
	// Output: 30000-32767 [30000 30001 30008] <nil>
}
