package nft

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/backends"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// Explain translates an error of nf_tables to the errors that package backends acts on.
// It returns an [nfnetlink.SizeError] unchanged: nothing was sent.
func Explain(err error) error {
	var refused *nfnetlink.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nfnetlink.ErrUnknownOutcome):
		return fmt.Errorf("%w: %w", proxy.ErrDataplaneLost, err)
	case IsShortage(err):
		return fmt.Errorf("nf_tables: out of memory: %w", err)
	case errors.Is(err, unix.EPERM) && errors.As(err, &refused) && refused.Table.Name != "" && !strings.HasPrefix(refused.Op, "list"):
		return fmt.Errorf("nf_tables: %w: table %v belongs to another process (flag owner): %w", backends.ErrUnavailable, refused.Table, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("nf_tables: %w: %w: CAP_NET_ADMIN is needed in the network namespace: %w", backends.ErrUnavailable, proxy.ErrUnsupported, err)
	case !errors.As(err, &refused):
		return err
	}
	return explainRefusal(refused, err)
}

// IsShortage reports whether memory was short. No single service port causes that, although a smaller
// commit may succeed.
func IsShortage(err error) bool { return errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS) }

// Replacing returns the outcome of a commit of a [backends.Replacement]. When memory is short, the outcome ends
// the Apply: what is not replaced serves.
func Replacing(out backends.Outcome) backends.Outcome {
	if err := out.Err(); IsShortage(err) {
		for i := range out.Failed {
			out.Failed[i] = fmt.Errorf("%w: the existing objects stay in effect: %w", backends.ErrUnavailable, err)
		}
	}
	return out
}

// explainRefusal translates the error of an operation that the kernel refused.
func explainRefusal(refused *nfnetlink.Error, err error) error {
	if feature := missingFeature(refused); feature != "" {
		return fmt.Errorf("nf_tables: %w: the kernel lacks %s: %w", proxy.ErrUnsupported, feature, err)
	}
	switch errno := refused.Errno; {
	case errno == unix.ENOENT || errno == unix.ENFILE:
		// Every object that the operation refers to was found or added before. So another
		// program has removed it, and perhaps more, or has filled a set that had room.
		return fmt.Errorf("nf_tables: %w: %w: %w", proxy.ErrDataplaneLost, backends.ErrConflict, err)
	case errno == unix.EEXIST || errno == unix.EBUSY || errno == unix.EOPNOTSUPP && refused.Op == "add chain":
		// The last one: no chain was found, but one with another hook exists by now.
		return fmt.Errorf("nf_tables: %w: %w", backends.ErrConflict, err)
	case errno == unix.EOPNOTSUPP || errno == unix.EAFNOSUPPORT || errno == unix.EPROTONOSUPPORT:
		return fmt.Errorf("nf_tables: %w: %w", proxy.ErrUnsupported, err)
	}
	return fmt.Errorf("nf_tables: %w", err)
}

// missingFeature names what the kernel must have, perhaps as a module, for the refused
// operation; "" if the refusal does not say that it lacks something.
func missingFeature(refused *nfnetlink.Error) string {
	switch {
	case strings.HasPrefix(refused.Op, "add rule") && (refused.Errno == unix.ENOENT || refused.Errno == unix.EOPNOTSUPP):
		return fmt.Sprintf("a feature that the rules of chain %s need, such as a module", refused.Object)
	case refused.Op == "add chain" && refused.Errno == unix.ENOENT && refused.Attr == unix.NFTA_CHAIN_TYPE:
		return fmt.Sprintf("the type of chain %s, such as module nft_chain_nat", refused.Object)
	}
	return ""
}
