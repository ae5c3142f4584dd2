package nftables

import (
	"context"

	"github.com/vipkit/vipkit/internal/ipaddr"
	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
)

func (k *kernel) addFound(frontend *key) {
	at := frontend.frontend()
	k.found.Add(ipaddr.FamilyOf(at.Addr()), frontend.proto, at)
}

// find reads the frontends of tables that are replaced without a complete listing. Elements of other forms, which
// only other programs make, are no frontends.
func (k *kernel) find(ctx context.Context, tables []nfnetlink.Table) error {
	k.found.Take()
	for _, t := range tables {
		l := lister{kernel: k, ctx: ctx, fam: t.Family}
		for _, set := range []string{setServices, setNodePorts} {
			err := l.Elements(ctx, t, set, func() { l.objects = l.objects[:0] }, func(e *nfnetlink.Element) error {
				_ = l.verdict(e, kindFrontend, set == setNodePorts)
				return nil
			})
			if err != nil {
				return nft.Explain(err)
			}
			for i := range l.objects {
				k.addFound(&l.objects[i].Key)
			}
			l.objects = l.objects[:0]
		}
	}
	return nil
}
