package backends

import (
	"context"
	"errors"

	"github.com/vipkit/vipkit/proxy"
)

// Outcome says what became of the ops of a [Target.Commit]. The zero value says that all were carried
// out.
type Outcome struct {
	// Failed has why ops were not carried out, by index. All others were.
	Failed map[int]error
	// Together says that the kernel refused the failed ops as one, and does not say which of them
	// it refuses: a smaller commit may succeed.
	Together bool
	// Lost, if not nil, says that the state is not known, for instance because another program changed
	// it, and why. The next Apply lists everything.
	Lost error
}

// Stopped returns the outcome of a commit of which a kernel with transactions has carried out the first
// done of all ops, and no other because of err; nil stands for none.
func Stopped(done, all int, err error) Outcome {
	if err == nil {
		return Outcome{}
	}
	if errors.Is(err, proxy.ErrDataplaneLost) {
		return Outcome{Lost: err}
	}
	o := Outcome{Failed: make(map[int]error, all-done), Together: true}
	for i := done; i < all; i++ {
		o.Failed[i] = err
	}
	return o
}

// Each returns the outcome of ops that do carries out one by one. It tries no more of them after
// an error that says that this is useless, and removes nothing after another op has failed.
func Each[K Key, V comparable](ctx context.Context, ops []Op[K, V], do func(*Op[K, V]) error) (out Outcome) {
	var last error // why the next op is not tried
	adds := true
	for i := range ops {
		o := &ops[i]
		if o.Kind == Remove && adds {
			adds = false
			for _, last = range out.Failed {
				break
			}
		}
		err := last
		if err == nil {
			err = do(o)
		}
		if errors.Is(err, proxy.ErrDataplaneLost) {
			return Outcome{Lost: err}
		}
		if err != nil {
			out.fail(i, err)
		}
		if err != nil && last == nil && final(ctx, err) {
			last = err
		}
	}
	return out
}

func (o *Outcome) fail(i int, err error) {
	if o.Failed == nil {
		o.Failed = map[int]error{}
	}
	o.Failed[i] = err
}

// err returns an error of the failed ops: one that ends the Apply, if there is one.
func (o *Outcome) err(ctx context.Context) (err error) {
	least := -1
	for i, e := range o.Failed {
		if least >= 0 && i > least && !final(ctx, e) {
			continue
		}
		if final(ctx, e) {
			return e
		}
		least, err = i, e
	}
	return err
}

// final reports whether dividing a commit cannot help: no single service port caused the
// error. ErrUnsupported is not final: a feature that all ports need fails with the static
// objects; otherwise single ports need it.
func final(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, ErrReplace) || errors.Is(err, ErrUnavailable) || errors.Is(err, proxy.ErrDataplaneLost)
}
