package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/vipkit/vipkit/allocator"
	"github.com/vipkit/vipkit/allocator/storetest"
)

// A change whose reply is lost may have been made: a pool reads the store to find out.
func ExampleFaulty() {
	memory := allocator.NewMemory(allocator.State{}, nil)
	store := storetest.NewFaulty(memory, rand.New(rand.NewPCG(1, 1)), storetest.Faults{LostAnswer: 1})
	_, err := store.Commit(context.Background(), []allocator.Op{
		{Claim: allocator.Claim{Key: storetest.Key(1), Owner: "me", Token: 1}},
	})
	fmt.Println(errors.Is(err, storetest.ErrLost))
	state, err := memory.Get(context.Background(), storetest.Key(1))
	fmt.Println(len(state.Claims), err)
	// Output:
	// true
	// 1 <nil>
}
