package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/nfnetlink"
	"github.com/vipkit/vipkit/proxy"
)

// purge is an endpoint that clients must not stick to any longer.
type purge struct {
	fam  family
	set  string
	slot slot
}

// purgeRounds bounds how often a map is looked at: once the frontend no longer
// leads to an endpoint, only clients that stick to it can bring it back, and
// these are what is removed.
const purgeRounds = 6

// onePart is how many clients the kernel tells of at once, at least. It tells of
// more in parts, and finds its place again by counting: of clients that it has
// moved meanwhile, as it does when many have come or gone, it passes some over.
// They are others the next time.
const onePart = 64

var errComeBack = errors.New("new clients are added as fast as they are removed")

// purge makes clients forget endpoints. It follows the commit that took the
// endpoints away, so that no new client can be added behind its back.
func (k *kernel) purge(ctx context.Context, purges []purge) error {
	bySet := map[elementTarget][]purge{}
	for _, p := range purges {
		t := elementTarget{fam: p.fam, set: p.set}
		bySet[t] = append(bySet[t], p)
	}
	for t, endpoints := range bySet {
		if err := k.purgeSet(ctx, t, endpoints); err != nil {
			return fmt.Errorf("%w: clients may still stick to endpoints that are gone, in map %s: %w", proxy.ErrDataplaneLost, t.set, err)
		}
	}
	return nil
}

// purgeSet removes clients from one map until none is left.
func (k *kernel) purgeSet(ctx context.Context, t elementTarget, endpoints []purge) error {
	return untilGone(func() ([]string, int, error) {
		return k.clientsOf(ctx, t, endpoints)
	}, func(clients []string) error {
		return k.forgetClients(ctx, t, clients)
	})
}

// untilGone looks for clients, among how many there are of all, and has them
// forgotten, until none is found any more; among many, twice in a row.
func untilGone(look func() (clients []string, all int, err error), forget func([]string) error) error {
	quiet := false
	for range purgeRounds {
		clients, all, err := look()
		if err != nil || len(clients) == 0 && (quiet || all <= onePart) {
			return err
		}
		if quiet = len(clients) == 0; quiet {
			continue
		}
		if err := forget(clients); err != nil {
			return err
		}
	}
	return errComeBack
}

// eachClient calls each with every client in a map and the endpoint that it
// sticks to. One whose port is not known sticks to none, and comes with port 0.
func (k *kernel) eachClient(ctx context.Context, t elementTarget, each func(client string, to slot)) error {
	n := t.fam.addrLen()
	endpoints := map[string]slot{}
	err := k.readClients(ctx, t.fam, t.set, func(client string, data []byte) {
		var to slot
		if len(data) >= n {
			copy(to.addr[:], data[:n])
		}
		if len(data) >= n+2 {
			to.port = binary.BigEndian.Uint16(data[n:])
		}
		endpoints[client] = to
	})
	if err == nil && t.fam == ipv6 {
		err = k.readClients(ctx, t.fam, affinityPortMap(t.set), func(client string, data []byte) {
			if to, ok := endpoints[client]; ok && len(data) >= 2 {
				to.port = binary.BigEndian.Uint16(data)
				endpoints[client] = to
			}
		})
		if errors.Is(err, unix.ENOENT) {
			err = nil // others removed that map; the next listing finds it missing
		}
	}
	for client, to := range endpoints {
		each(client, to)
	}
	return err
}

// readClients reads one map of clients.
func (k *kernel) readClients(ctx context.Context, fam family, set string, note func(client string, data []byte)) error {
	err := k.conn.Elements(ctx, k.table(fam), set, nfnetlink.Visitor[nfnetlink.Element]{
		Each: func(e *nfnetlink.Element) error {
			if len(e.Key) == 0 {
				return mustReplace("map " + set + ", which holds an element for all clients,")
			}
			note(string(e.Key), e.Data)
			return nil
		},
	})
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		// Packets may change the map at any time, so that no listing is exact. One
		// that commits of others interrupted is no worse.
		return nil
	}
	return err
}

// clientsOf gives the keys of the clients that stick to some endpoints, or would
// once their port is known, and how many clients there are in all.
func (k *kernel) clientsOf(ctx context.Context, t elementTarget, endpoints []purge) (clients []string, all int, err error) {
	gone := map[slot]bool{}
	for i := range endpoints {
		gone[endpoints[i].slot] = true
		gone[slot{addr: endpoints[i].slot.addr}] = true
	}
	err = k.eachClient(ctx, t, func(client string, to slot) {
		all++
		if gone[to] {
			clients = append(clients, client)
		}
	})
	return clients, all, err
}

// forgetClients removes clients from a map. One that expires meanwhile makes
// the kernel refuse the transaction, unless it knows removal of what may not be
// there (Linux 6.3); then each goes by itself.
func (k *kernel) forgetClients(ctx context.Context, t elementTarget, clients []string) error {
	sets := []string{t.set}
	if t.fam == ipv6 {
		// A port that stayed would go with the address of another endpoint:
		// the kernel notes a client anew without changing what it has.
		sets = append(sets, affinityPortMap(t.set))
	}
	err := k.removeClients(ctx, elementTarget{nfnetlink.OpDestroy, t.fam, ""}, sets, clients)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	for i := range clients {
		for j := range sets {
			err := k.removeClients(ctx, elementTarget{nfnetlink.OpDelete, t.fam, ""}, sets[j:j+1], clients[i:i+1])
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return nil
}

func (k *kernel) removeClients(ctx context.Context, t elementTarget, sets, clients []string) error {
	k.batch.Reset()
	for _, set := range sets {
		w := k.batch.Elements(t.op, k.table(t.fam), set)
		for _, c := range clients {
			w.Key([]byte(c))
		}
	}
	if err := k.transact(ctx, &k.batch); err != nil {
		return err
	}
	k.ops.Add(uint64(len(sets) * len(clients)))
	return nil
}
