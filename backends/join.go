package backends

import (
	"errors"
	"fmt"
	"maps"

	"github.com/vipkit/vipkit/proxy"
)

// JoinErrors returns the error of a change that consists of several parts, such as IP families
// or transactions; errs has the error of each part, nil for those that succeeded. It returns nil
// if all succeeded, and a [proxy.PortErrors] if only single service ports failed. If some parts
// have changed the dataplane and others have not, the error wraps [proxy.ErrDataplaneLost],
// unless known is false: then the change started from the zero Snapshot, and an error leaves the
// state unknown anyway.
func JoinErrors(known bool, errs ...error) error {
	failed, changed := proxy.PortErrors{}, false
	var others []error
	for _, err := range errs {
		some, _ := errors.AsType[proxy.PortErrors](err)
		if errors.Is(err, proxy.ErrDataplaneLost) {
			some = nil
		}
		maps.Copy(failed, some)
		changed = changed || err == nil || some != nil
		if err != nil && some == nil {
			others = append(others, err)
		}
	}
	switch {
	case len(others) == 0 && len(failed) == 0:
		return nil
	case len(others) == 0:
		return failed
	case len(failed) > 0:
		others = append(others, errors.New(failed.Error())) // As text: not all other ports are programmed.
	}
	err := errors.Join(others...)
	if known && changed && !errors.Is(err, proxy.ErrDataplaneLost) {
		err = fmt.Errorf("%w: change partly applied: %w", proxy.ErrDataplaneLost, err)
	}
	return err
}
