/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * The same-machine bypass: what one end of a local TCP connection sends is put into the other end's receive queue.
 *
 * `kw_opened` (sock_ops, on a cgroup) puts both ends of a connection to a listening socket of this server into a sockhash. `kw_sent`
 * (sk_msg) runs when one of them sends, in its process, under its lock, and decides for each message: hand it over, or leave it to TCP.
 *
 * Order: a socket's queue of messages that were handed over is read before its TCP data. A message is handed over only if the other
 * end has read all that this end has ever sent by TCP. The other end says so itself, in sequence numbers, whenever it sends
 * (`tell`). Data that TCP carries later is read after it, because the kernel reads TCP data only if no message waits.
 *
 * A receive never returns both, so with both there, it returns less than was asked for and leaves data: processes that wait for edges
 * (EPOLLET) may take that for the end. So a direction that was handed over changes to TCP only if too much waits.
 *
 * Bound: each end also tells how many of the bytes that were handed to it have been read, by the memory that its socket is charged for.
 * The last message counts as waiting, because it reaches the queue only after the program.
 *
 * A socket holds the program, and the program its maps. So when the server is gone, connections that are left keep both until they close.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "bypass.h"
#include "kernel.h"

#define KW_INLINE static __always_inline
#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define TCP_ULP 31 /* linux/tcp.h, which does not go together with the structures below */
#define ENOPROTOOPT 92
/* Longest option that a program of a cgroup may look at without taking it over. */
#define OPTION_MAX 4096

/* The loader sets the numbers. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 2);
	__type(key, struct kw_socket);
	__type(value, __u32);
} kw_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct kw_socket);
	__type(value, struct kw_pair);
} kw_pairs SEC(".maps");

/* A socket that a listening one accepts gets a copy. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct kw_end);
} kw_ends SEC(".maps");

/* The ports of the listening sockets: those that the server knows, and those that have accepted a connection. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct kw_port);
	__type(value, __u32);
} kw_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KW_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} kw_bypassed SEC(".maps");

KW_INLINE void add(__u32 counter, __u64 count)
{
	__u64 *sum = bpf_map_lookup_elem(&kw_bypassed, &counter);

	if (sum)
		*sum += count;
}

KW_INLINE int is_loopback(const __u32 *address)
{
	int is_v4 = !address[0] && !address[1] && address[2] == bpf_htonl(0xffff);

	return is_v4 && (address[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

/* The key of the pair, if both addresses are of this host as far as they show it. Addresses that differ may lead elsewhere. */
KW_INLINE int pair_of(struct bpf_sock_ops *ops, int is_client, struct kw_socket *pair)
{
	__u32 own[4] = {0, 0, bpf_htonl(0xffff), 0}, other[4] = {0, 0, bpf_htonl(0xffff), 0};
	__u32 own_port = ops->local_port, other_port = bpf_ntohl(ops->remote_port);

	if (ops->family == AF_INET) {
		own[3] = ops->local_ip4;
		other[3] = ops->remote_ip4;
	} else if (ops->family == AF_INET6) {
		own[0] = ops->local_ip6[0];
		own[1] = ops->local_ip6[1];
		own[2] = ops->local_ip6[2];
		own[3] = ops->local_ip6[3];
		other[0] = ops->remote_ip6[0];
		other[1] = ops->remote_ip6[1];
		other[2] = ops->remote_ip6[2];
		other[3] = ops->remote_ip6[3];
	} else {
		return 0;
	}
	int is_same = own[0] == other[0] && own[1] == other[1] && own[2] == other[2] && own[3] == other[3];

	if (!is_same && !(is_loopback(own) && is_loopback(other)))
		return 0;
	__builtin_memset(pair, 0, sizeof(*pair));
	pair->namespace = bpf_get_netns_cookie(ops);
	__builtin_memcpy(pair->client, is_client ? own : other, sizeof(own));
	__builtin_memcpy(pair->server, is_client ? other : own, sizeof(own));
	pair->client_port = is_client ? own_port : other_port;
	pair->server_port = is_client ? other_port : own_port;
	pair->role = KW_SERVER;
	return 1;
}

/* Whether this socket is plain TCP without data: no kernel TLS, no MPTCP, no fast open. */
KW_INLINE int is_plain(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct tcp_sock *tcp = sk ? bpf_skc_to_tcp_sock(sk) : 0;

	return tcp && !tcp->inet_conn.icsk_ulp_ops && !tcp->bytes_received;
}

KW_INLINE void join_client(struct bpf_sock_ops *ops)
{
	struct kw_socket pair, own;
	struct kw_end *end;

	if (!pair_of(ops, 1, &pair))
		return;
	struct kw_port port = {pair.namespace, pair.server_port};

	if (!bpf_map_lookup_elem(&kw_ports, &port) || !is_plain(ops))
		return;
	struct bpf_sock *sk = ops->sk;

	end = sk ? bpf_sk_storage_get(&kw_ends, sk, 0, BPF_SK_STORAGE_GET_F_CREATE) : 0;
	if (!end)
		return;
	own = pair;
	own.role = KW_CLIENT;
	end->role = KW_CLIENT;
	end->client_first = ops->snd_nxt;
	end->server_first = ops->rcv_nxt;
	end->is_in = 0;
	end->turn_passed = 0;
	end->last = 0;
	end->turn = 1;
	end->pair = pair;
	end->other = pair;
	/* It fails if the socket is another program's, or there is no room: then it is not bypassed. */
	if (bpf_sock_hash_update(ops, &kw_sockets, &own, BPF_ANY)) {
		end->role = KW_NOTHING;
		return;
	}
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

KW_INLINE void join_server(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct kw_end *end = sk ? bpf_sk_storage_get(&kw_ends, sk, 0, 0) : 0;
	struct kw_socket pair, other;

	if (!end || end->role != KW_LISTENER)
		return;
	end->role = KW_NOTHING;
	if (!pair_of(ops, 0, &pair) || !is_plain(ops))
		return;
	struct kw_port port = {pair.namespace, pair.server_port};
	__u32 one = 1;

	if (!bpf_map_lookup_elem(&kw_ports, &port))
		bpf_map_update_elem(&kw_ports, &port, &one, BPF_ANY);
	if (bpf_sock_hash_update(ops, &kw_sockets, &pair, BPF_ANY))
		return;
	other = pair;
	other.role = KW_CLIENT;
	end->client_first = ops->rcv_nxt;
	end->server_first = ops->snd_nxt;
	end->is_in = 1;
	end->turn_passed = 0;
	end->last = 0;
	end->turn = 1;
	end->pair = pair;
	end->other = other;
	struct kw_pair new = {};

	new.life = (__u64)end->server_first << 32 | 1 << KW_SERVER;
	new.client_first = end->client_first;
	new.server_first = end->server_first;
	/* Neither end has been sent anything by TCP. */
	new.told[KW_SERVER].read = 1ull << 32 | end->client_first;
	new.told[KW_CLIENT].read = 1ull << 32 | end->server_first;
	if (bpf_map_update_elem(&kw_pairs, &pair, &new, BPF_ANY))
		return;
	end->role = KW_SERVER;
	bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG);
}

/* The pair is removed by the last end that had joined: until then the other end may be using it. */
KW_INLINE void leave(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct kw_end *end = sk ? bpf_sk_storage_get(&kw_ends, sk, 0, 0) : 0;

	if (!end || end->role > KW_CLIENT || !end->is_in)
		return;
	end->is_in = 0;
	__u64 own = 1ull << end->role;
	struct kw_pair *pair = bpf_map_lookup_elem(&kw_pairs, &end->pair);

	end->role = KW_NOTHING;
	if (!pair || pair->server_first != end->server_first || pair->client_first != end->client_first)
		return;
	__u64 before = __sync_fetch_and_and(&pair->life, ~own);
	__u64 ends = before & 3;

	if (ends == 3)
		add(KW_PARTED, 1);
	if (ends == own)
		bpf_map_delete_elem(&kw_pairs, &end->pair);
}

SEC("sockops")
int kw_opened(struct bpf_sock_ops *ops)
{
	switch (ops->op) {
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		join_client(ops);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		join_server(ops);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ops->args[1] == BPF_TCP_CLOSE)
			leave(ops);
		break;
	}
	return 1;
}

/* Whether the client may use the pair: it is this connection's, and the server's end, which made it, is not closed. */
KW_INLINE int join_pair(struct kw_end *end, struct kw_pair *pair)
{
	__u64 alone = (__u64)end->server_first << 32 | 1 << KW_SERVER;

	/* With its number: the memory may have become another connection's. */
	if (__sync_val_compare_and_swap(&pair->life, alone, alone | 1 << KW_CLIENT) != alone)
		return 0;
	end->is_in = 1;
	add(KW_PAIRED, 1);
	return 1;
}

SEC("sk_msg")
int kw_sent(struct sk_msg_md *message)
{
	struct bpf_sock *sk = message->sk;
	struct kw_end *end = sk ? bpf_sk_storage_get(&kw_ends, sk, 0, 0) : 0;

	if (!end || end->role > KW_CLIENT)
		return SK_PASS;
	/* TCP knows the errors of the other states. */
	if (sk->state != BPF_TCP_ESTABLISHED && sk->state != BPF_TCP_CLOSE_WAIT)
		return SK_PASS;
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct kw_pair *pair = bpf_map_lookup_elem(&kw_pairs, &end->pair);

	if (!tcp || !pair || pair->server_first != end->server_first || pair->client_first != end->client_first)
		return SK_PASS;
	if (!end->is_in && (end->role != KW_CLIENT || !join_pair(end, pair)))
		return SK_PASS;
	struct kw_told *own = &pair->told[end->role & 1], *other = &pair->told[!(end->role & 1)];
	volatile __u64 *given = &other->given, *read = &other->read, *taken = &other->taken;

	/* Tell. In this order: what arrives in between counts as not taken. */
	__u64 due = *given;
	int held = tcp->inet_conn.icsk_inet.sk.sk_backlog.rmem_alloc.counter;

	end->turn += 1;
	*(volatile __u64 *)&own->taken = held > 0 ? due - (due < (__u32)held ? due : (__u32)held) : due;
	*(volatile __u64 *)&own->read = (__u64)end->turn << 32 | tcp->copied_seq;

	*(volatile __u64 *)&own->given += end->last;
	end->last = 0;

	__u64 their = *read, size = message->size;
	__u32 reason, life = pair->life & 3;

	if (life != 3)
		return SK_PASS;
	if ((__u32)their != tcp->write_seq || their >> 32 == end->turn_passed)
		reason = KW_BEHIND;
	else if (own->given - *taken >= KW_QUEUED_MAX)
		reason = KW_FULL;
	else if (tcp->inet_conn.icsk_ulp_ops)
		return SK_PASS;
	else {
		if (bpf_msg_redirect_hash(message, &kw_sockets, &end->other, BPF_F_INGRESS) == SK_PASS) {
			end->last = size;
			add(KW_HANDED, 1);
			add(KW_BYTES, size);
			return SK_PASS;
		}
		/* The other end is closed, or did not join. */
		reason = KW_BEHIND;
	}
	/* From here on TCP, until the other end has told again: its sequence numbers alone come round after 4 GiB. */
	end->turn_passed = their >> 32;
	add(reason, 1);
	return SK_PASS;
}

/* Kernel TLS would take what is handed over for decrypted data. A client that is refused it encrypts in user space. */
SEC("cgroup/setsockopt")
int kw_option(struct bpf_sockopt *option)
{
	int is_ulp = option->level == IPPROTO_TCP && option->optname == TCP_ULP;
	struct bpf_sock *sk = option->sk;

	if (option->optlen > OPTION_MAX)
		option->optlen = 0; /* the kernel takes the caller's own */
	if (!is_ulp || !sk)
		return 1;
	struct kw_end *end = bpf_sk_storage_get(&kw_ends, sk, 0, 0);

	return !end || end->role > KW_CLIENT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
