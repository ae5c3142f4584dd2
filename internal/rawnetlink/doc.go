// Package rawnetlink encodes and exchanges netlink messages of any protocol: the part that
// nf_tables, ipset, IPVS and routing have in common.
//
// A [Conn] sends many requests with one system call and reads their answers together, of
// which there is one if all succeed:
//
//	var r rawnetlink.Requests
//	for _, message := range messages {
//		b := r.Begin(messageType, unix.NLM_F_CREATE)
//		r.End(append(b, message...))
//	}
//	failures, err := conn.Do(ctx, &r)
//
// A [Socket] is for packages with an exchange of their own.
package rawnetlink
