//go:build !windows

package agent

import (
	"context"
	"errors"
)

// runAsService fails: the flag is refused before, as is the field.
func runAsService(context.Context, func(context.Context) error) error {
	return errors.New("-windows-service is for Windows")
}
