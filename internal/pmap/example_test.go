package pmap_test

import (
	"fmt"
	"strings"

	"github.com/vipkit/vipkit/internal/pmap"
)

type city string

func (c city) Compare(o city) int { return strings.Compare(string(c), string(o)) }

func Example() {
	e := pmap.New[city, int]().Edit()
	e.Set("Graz", 1)
	e.Set("Linz", 2)
	e.Set("Bern", 3)
	old := e.Map()

	e.Set("Graz", 4)
	e.Set("Ulm", 5)
	e.Delete("Bern")
	now := e.Map()

	fmt.Println("there were", old.Len(), "and now there are", now.Len())
	for c := range now.Diff(old) {
		switch {
		case !c.HadOld:
			fmt.Println(c.Key, "is new:", c.New)
		case !c.HasNew:
			fmt.Println(c.Key, "is gone:", c.Old)
		default:
			fmt.Println(c.Key, "changed:", c.Old, "to", c.New)
		}
	}
	// Output:
	// there were 3 and now there are 3
	// Bern is gone: 3
	// Graz changed: 1 to 4
	// Ulm is new: 5
}
