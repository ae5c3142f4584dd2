package backends

import (
	"errors"
	"fmt"
	"maps"

	"github.com/vipkit/vipkit/proxy"
)

// JoinErrors returns the error of an Apply from old that has several parts, such as IP families. errs
// has the error of each part, nil for success. The result is nil if all parts succeeded, and a
// [proxy.PortErrors] if only single service ports failed. If some parts changed the dataplane and
// others did not, the dataplane does not match old any more: the result wraps [proxy.ErrDataplaneLost],
// unless old is the zero Snapshot.
func JoinErrors(old proxy.Snapshot, errs ...error) error {
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
	if !old.IsZero() && changed && !errors.Is(err, proxy.ErrDataplaneLost) {
		err = fmt.Errorf("%w: change partly applied: %w", proxy.ErrDataplaneLost, err)
	}
	return err
}
