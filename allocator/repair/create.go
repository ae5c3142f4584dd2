package repair

import (
	"context"
	"fmt"

	"github.com/vipkit/vipkit/allocator"
)

func (p *pass) create(ctx context.Context, store Creator) error {
	var claims []allocator.Claim
	for _, c := range p.changes {
		claims = append(claims, c.op.Claim)
	}
	if err := store.Create(ctx, claims...); err != nil {
		return fmt.Errorf("creating the map: %w", err)
	}
	return nil
}

// startAgain compares the store that has a map now. The map may be that of another process,
// which was faster, and a store with a map for each range may have had some of them; so the
// store need not have the claims of create.
func (p *pass) startAgain(ctx context.Context, store allocator.Store, users map[allocator.Key][]allocator.Owner) error {
	state, err := store.Load(ctx)
	if err != nil {
		return fmt.Errorf("reading the new map: %w", err)
	}
	tokens := make(map[allocator.Key]uint64, len(state.Claims))
	for _, c := range state.Claims {
		tokens[c.Key] = c.Token
	}
	var created []Finding
	for _, c := range p.changes {
		if tokens[c.op.Claim.Key] == c.op.Claim.Token {
			p.findings[c.finding].Mended = true
			created = append(created, p.findings[c.finding])
		}
	}
	p.findings, p.changes = p.findings[:p.spelling], nil
	p.seen.record(state.Claims, p.isFromFuture)
	p.compare(state.Claims, users)
	err = p.finish(ctx, store, state.Claims)
	p.findings = append(p.findings, created...)
	return err
}
