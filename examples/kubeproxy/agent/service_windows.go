package agent

import (
	"context"
	"fmt"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
)

// serviceName is kube-proxy's name. The service manager ignores it for a service with a process of
// its own.
const serviceName = "kube-proxy"

// runAsService runs serve as a service of Windows, until the service is stopped or ctx ends.
func runAsService(ctx context.Context, serve func(context.Context) error) error {
	s := &windowsService{ctx: ctx, serve: serve}
	if err := svc.Run(serviceName, s); err != nil {
		return fmt.Errorf("-windows-service: the service manager has not started this program: %w", err)
	}
	return s.err
}

// windowsService is a [svc.Handler].
type windowsService struct {
	ctx   context.Context //nolint:containedctx // the interface has none
	serve func(context.Context) error
	err   error
}

// Execute implements [svc.Handler].
func (s *windowsService) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (isSpecific bool, code uint32) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.serve(ctx) }()
	running := svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	status <- running
	for {
		select {
		case s.err = <-ended:
			status <- svc.Status{State: svc.StopPending}
			if s.err != nil {
				// So the service manager restarts the service, if it is configured to.
				return false, uint32(windows.ERROR_EXCEPTION_IN_SERVICE)
			}
			return false, uint32(windows.NO_ERROR)
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending}
				cancel()
			}
		}
	}
}
