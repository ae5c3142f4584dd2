package nftables

import "context"

// Drifted implements [proxy.DriftChecker]: others have committed to our tables since
// they were looked at, or may have.
func (k *kernel) Drifted(context.Context) bool { return k.monitor.Noticed() }

// WaitDrift implements [proxy.DriftChecker].
func (k *kernel) WaitDrift(ctx context.Context) error { return k.monitor.Wait(ctx) }
