package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/vipkit/vipkit/internal/kernel/nfnetlink"
	"github.com/vipkit/vipkit/internal/kernel/nft"
	"github.com/vipkit/vipkit/proxy"
)

// purgeRounds bounds how often a map is listed. After the commit that removed an endpoint,
// only packets of clients with affinity to it can add it to the map again, and purge
// removes these clients.
const purgeRounds = 6

// onePart is the least number of clients that the kernel lists in one message. To find the
// start of the next message, the kernel counts elements. When many clients are added or
// removed in between, it moves some to other positions, and may skip them. The next listing
// skips different ones.
const onePart = 64

var errRefilled = errors.New("packets add clients as fast as they are removed")

// purge removes clients from affinity maps. It is called after the last transaction that removes
// their endpoints, so that packets of new clients cannot add affinity to these, and it waits for
// all packets that the kernel had begun to evaluate before: these may add clients, too.
func (k *kernel) purge(ctx context.Context) error {
	suspects := k.tables.affinity.toPurge()
	if len(suspects) == 0 {
		return nil
	}
	k.Await()
	for set := range suspects {
		target := elementTarget{table: k.tables.table(set.fam), set: text(set.name)}
		if err := k.purgeMap(ctx, target, k.tables.affinity.endpoints[set]); err != nil {
			return fmt.Errorf("%w: affinity map %s may still have clients of removed endpoints: %w", proxy.ErrDataplaneLost, target.set, err)
		}
		delete(suspects, set)
	}
	return nil
}

// purgeMap removes clients from one map until it finds only clients of some endpoints. A client that has only the
// address of its endpoint, and no port yet, counts as one of each endpoint with the address.
func (k *kernel) purgeMap(ctx context.Context, target elementTarget, endpoints map[slot]bool) error {
	all := maps.Clone(endpoints)
	for s := range endpoints {
		all[slot{addr: s.addr}] = true
	}
	find := func() (clients []string, count int, err error) {
		err = k.eachClient(ctx, target, func(client string, to slot) {
			count++
			if !all[to] {
				clients = append(clients, client)
			}
		})
		return clients, count, err
	}
	return untilNone(find, func(clients []string) error { return k.forgetClients(ctx, target, clients) })
}

// untilNone finds clients and removes them, until it finds none any more. It must find none
// twice in a row if the map has more clients in all than the kernel lists in one message.
func untilNone(find func() (clients []string, all int, err error), remove func([]string) error) error {
	foundNone := false
	for range purgeRounds {
		clients, all, err := find()
		if err != nil || len(clients) == 0 && (foundNone || all <= onePart) {
			return err
		}
		if foundNone = len(clients) == 0; foundNone {
			continue
		}
		if err := remove(clients); err != nil {
			return err
		}
	}
	return errRefilled
}

// eachClient calls each with every client in a map and its endpoint. The port is 0 if the
// map lacks it; such a client has no affinity.
func (k *kernel) eachClient(ctx context.Context, t elementTarget, each func(client string, to slot)) error {
	n := t.table.Family.AddrLen()
	endpoints := map[string]slot{}
	err := k.readClients(ctx, t.table, t.set, func(client string, data []byte) {
		var to slot
		if len(data) >= n {
			copy(to.addr[:], data[:n])
		}
		if len(data) >= n+2 {
			to.port = binary.BigEndian.Uint16(data[n:])
		}
		endpoints[client] = to
	})
	if err == nil && t.table.Family == nfnetlink.IPv6 {
		err = k.readClients(ctx, t.table, affinityPortMap(t.set), func(client string, data []byte) {
			if to, ok := endpoints[client]; ok && len(data) >= 2 {
				to.port = binary.BigEndian.Uint16(data)
				endpoints[client] = to
			}
		})
		if errors.Is(err, unix.ENOENT) {
			err = nil // another program removed that map; the next listing finds it missing
		}
	}
	for client, to := range endpoints {
		each(client, to)
	}
	return err
}

// readClients reads one map of clients.
func (k *kernel) readClients(ctx context.Context, table nfnetlink.Table, set string, note func(client string, data []byte)) error {
	err := k.Netlink.Elements(ctx, table, set, nfnetlink.Visitor[nfnetlink.Element]{
		Each: func(e *nfnetlink.Element) error {
			if len(e.Key) == 0 {
				return nft.MustReplace("map " + set + ", which has a catch-all element,")
			}
			note(string(e.Key), e.Data)
			return nil
		},
	})
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		// Packets may change the map at any time, so no listing is exact. One that
		// commits of other programs interrupted is no worse.
		return nil
	}
	return err
}

// forgetClients removes clients from a map. A client that expires in the meantime makes the
// kernel refuse a transaction that deletes it. So the transaction destroys the elements, or
// before Linux 6.3, which has no destroy, each is deleted by itself.
func (k *kernel) forgetClients(ctx context.Context, t elementTarget, clients []string) error {
	sets := []string{t.set}
	if t.table.Family == nfnetlink.IPv6 {
		// A port that is left would be combined with the address of another endpoint:
		// the kernel does not change the datum of an element that exists.
		sets = append(sets, affinityPortMap(t.set))
	}
	err := k.removeClients(ctx, elementTarget{nfnetlink.OpDestroy, t.table, ""}, sets, clients)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	for i := range clients {
		for j := range sets {
			err := k.removeClients(ctx, elementTarget{nfnetlink.OpDelete, t.table, ""}, sets[j:j+1], clients[i:i+1])
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
	}
	return nil
}

// removeClients removes clients from some sets in one transaction, or in several if it exceeds the
// send buffer, as it may in an unprivileged user namespace.
func (k *kernel) removeClients(ctx context.Context, t elementTarget, sets, clients []string) error {
	k.batch.Reset()
	for _, set := range sets {
		w := k.batch.Elements(t.op, t.table, set)
		for _, c := range clients {
			w.Key([]byte(c))
		}
	}
	err := k.Transact(ctx, &k.batch)
	var size *nfnetlink.SizeError
	if errors.As(err, &size) && len(clients) > 1 {
		half := len(clients) / 2
		if err := k.removeClients(ctx, t, sets, clients[:half]); err != nil {
			return err
		}
		return k.removeClients(ctx, t, sets, clients[half:])
	}
	if err != nil {
		return err
	}
	k.ops.Add(uint64(len(sets) * len(clients)))
	return nil
}
