#pragma once

/// A transport moves bytes between the ranks of a job. The host allocates all memory and decides what moves and when.
/// The transport connects ranks into groups and runs ops on them.
///
/// The host calls, in this order: shardrun_open_v1; `configure`; `share_first`, if ranks that another launcher started
/// cannot find each other otherwise; `open`; `mem_register` and `group_create`; the functions of ops; `group_destroy`
/// and `mem_deregister`; `close`; sr_plugin::close. It calls `props` and `op_query` at any time after `configure`.
///
/// An op is prepared once and started many times: prepare, (start, wait)*, free. A started op is complete on a rank
/// when its result is there and no peer accesses that rank's buffers for this op any more.
///
/// Deadlines are absolute, in nanoseconds of CLOCK_MONOTONIC; INT64_MAX is never. A wait that ends with SR_TIMEOUT
/// leaves the op running. An op past its own deadline fails its group.
///
/// A group can fail on one rank and not on another. On a rank where it has failed it stays failed: each of its ops
/// there, pending or new, ends with an error within a second. The error is SR_ABORTED if the group was aborted, and
/// SR_PEER_LOST or SR_TIMEOUT if that was the cause.
///
/// If a member's process ends, every op that waits for that member fails with SR_PEER_LOST, long before the op's
/// deadline, and the error names the member's rank. On members that wait only for others, the hosts abort the group.
/// Until then, ops that do not need the lost member continue.
///
/// With SR_PEER_LOST or SR_TIMEOUT, sr_error::awaited names a rank of the world that is lost or was waited for, if the
/// transport knows one. The host uses it to decide which rank failed first.

#include <shardrun/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SR_MEMORY_HOST UINT32_C(1)
#define SR_MEMORY_PINNED UINT32_C(2) /* host memory that a device can reach */
#define SR_MEMORY_CUDA UINT32_C(3)

#define SR_DTYPE_F32 UINT32_C(1)
#define SR_DTYPE_F64 UINT32_C(2)
#define SR_DTYPE_F16 UINT32_C(3)
#define SR_DTYPE_BF16 UINT32_C(4)
#define SR_DTYPE_I8 UINT32_C(5)
#define SR_DTYPE_U8 UINT32_C(6)
#define SR_DTYPE_I32 UINT32_C(7)
#define SR_DTYPE_U32 UINT32_C(8)
#define SR_DTYPE_I64 UINT32_C(9)
#define SR_DTYPE_U64 UINT32_C(10)

/// An op with SR_OP_INFO_ROUNDED_ONCE computes sums and products of F16 and BF16 in float32: it widens the elements,
/// every partial result is a float32, and the result is rounded once to the dtype, to nearest with ties to even. Over
/// two members there is a single sum and a single rounding in any case.
#define SR_REDUCE_SUM UINT32_C(1)
#define SR_REDUCE_PRODUCT UINT32_C(2)
#define SR_REDUCE_MIN UINT32_C(3) /* MIN and MAX give NaN where any member's element is NaN */
#define SR_REDUCE_MAX UINT32_C(4)

/// Opcodes. n is the size of the group. Blocks are in the order of the group's members, one after the other.
///
/// In place means that send and recv share memory:
/// - REDUCE, ALL_REDUCE, BROADCAST: send and recv are one buffer
/// - ALL_GATHER(V): send is this rank's block of recv
/// - REDUCE_SCATTER(V): recv is this rank's block of send
/// - ALL_TO_ALL(V), GATHER and SCATTER are never in place
/// Otherwise send and recv do not overlap, and send is not changed.
#define SR_OP_SEND UINT32_C(1)             /* count elements of send to peer */
#define SR_OP_RECV UINT32_C(2)             /* count elements from peer into recv */
#define SR_OP_BARRIER UINT32_C(3)          /* no buffer; no member leaves before every member has entered */
#define SR_OP_BROADCAST UINT32_C(4)        /* count elements of peer's send into every recv, peer's too */
#define SR_OP_REDUCE UINT32_C(5)           /* reduces the sends of all members, count elements, into peer's recv */
#define SR_OP_ALL_REDUCE UINT32_C(6)       /* the same into every recv, with the same bits on every member */
#define SR_OP_ALL_GATHER UINT32_C(7)       /* count elements of every send, in order, into every recv of n * count */
#define SR_OP_ALL_GATHERV UINT32_C(8)      /* the same, recv_counts[i] elements from member i */
#define SR_OP_REDUCE_SCATTER UINT32_C(9)   /* reduces all sends; member i receives block i, of count elements */
#define SR_OP_REDUCE_SCATTERV UINT32_C(10) /* the same, block i of recv_counts[i] elements */
#define SR_OP_ALL_TO_ALL UINT32_C(11)  /* sends block i of send, of count elements, to i; i's go into block i of recv */
#define SR_OP_ALL_TO_ALLV UINT32_C(12) /* the same, send_counts[i] elements to and recv_counts[i] from member i */
#define SR_OP_GATHER UINT32_C(13)      /* count elements of every send into peer's recv of n * count */
#define SR_OP_SCATTER UINT32_C(14)     /* block i, of count elements, of peer's send into member i's recv */

/// The caller waits right after starting, so background work gains nothing.
#define SR_OP_FLAG_BLOCKING UINT32_C(1)
/// Since 1.8; older transports ignore it. Asks that an op that reduces be SR_OP_INFO_STEPWISE and, if it adds or
/// multiplies F16 or BF16, SR_OP_INFO_ROUNDED_ONCE. The flags from op_query say whether the op is. If it is not, the
/// host builds the op from SEND and RECV, or refuses the op if its buffers are not host memory.
#define SR_OP_FLAG_IN_ORDER UINT32_C(2)

/// Memory that ops will use; usually an arena.
typedef struct sr_memory {
  uint32_t struct_size;
  uint32_t kind; /* SR_MEMORY_... */
  void* data;
  uint64_t bytes;
  uint64_t descriptor_offset;
  int32_t descriptor; /* of a file for others to map; its bytes from descriptor_offset on are this memory; -1: none */
  uint32_t device;    /* for SR_MEMORY_CUDA: its ordinal */
} sr_memory;
#define SR_MEMORY_SIZE_1_0 UINT32_C(40)

#define SR_QUEUE_HOST UINT32_C(1) /* its work runs on threads of the host */
#define SR_QUEUE_CUDA UINT32_C(2)

/// Since 1.6. A queue of a device: work that is done in the order in which it is given, while the host continues. The
/// host provides it. It stays valid until the ops that were enqueued in it or joined into it are freed. None of its
/// functions waits. Each call that it was asked for is made, even after an error of its work or after the op has been
/// freed. The plugin's code is still loaded then.
typedef struct sr_queue {
  uint32_t struct_size;
  uint32_t kind;     /* SR_QUEUE_... */
  uint32_t device;   /* for SR_QUEUE_CUDA: its ordinal */
  uint32_t reserved; /* zero */
  void* self;
  void* native; /* for SR_QUEUE_CUDA: its CUstream, which is cudaStream_t; otherwise NULL */
  /// Only for use within op_enqueue and op_join. Makes the queue call `run(argument)` once its earlier work is done, on
  /// any thread, perhaps before this returns. `run` must return soon, and call no host function except open_gate.
  int32_t (*call)(void* self, void (*run)(void* argument), void* argument, sr_error* error);
  /// Only for use within op_enqueue and op_join. Makes work that is given later wait until the gate is open.
  int32_t (*add_gate)(void* self, uint64_t* gate, sr_error* error);
  /// ANY, once for each gate. Opens a gate. It calls no function of the transport.
  void (*open_gate)(void* self, uint64_t gate);
} sr_queue;
#define SR_QUEUE_SIZE_1_6 UINT32_C(56)

typedef struct sr_buffer {
  uint32_t struct_size;
  uint32_t kind; /* SR_MEMORY_... */
  void* data;    /* may be NULL where bytes is 0 */
  uint64_t bytes;
  uint64_t registration; /* of the memory that contains it; 0: not registered */
  uint32_t device;
  uint32_t reserved; /* zero */
} sr_buffer;
#define SR_BUFFER_SIZE_1_0 UINT32_C(40)

/// One op, as one member of a group sees it. All members must agree on opcode, dtype, reduction, id and counts (one
/// sends what the other expects), and on peer if it is a root.
typedef struct sr_op {
  uint32_t struct_size;
  uint32_t opcode;             /* SR_OP_... */
  uint32_t dtype;              /* SR_DTYPE_...; none for a barrier */
  uint32_t reduction;          /* SR_REDUCE_..., for ops that reduce */
  uint32_t peer;               /* an index into the group: the other member of SEND and RECV, or the root */
  uint32_t flags;              /* SR_OP_FLAG_...; unknown ones are skipped */
  uint64_t id;                 /* chosen by the host; unique within the group among prepared ops */
  uint64_t count;              /* elements, as the opcode says */
  const uint64_t* send_counts; /* for the V forms, one per member; read only during the call */
  const uint64_t* recv_counts;
  const sr_buffer* send; /* NULL where the op has none on this member; read only during the call */
  const sr_buffer* recv;
  const sr_buffer* scratch; /* of at least sr_op_info::scratch_bytes, for this op alone; NULL where that is 0 */
  const char* label;        /* what is moved, for messages: a tensor's name; may be NULL */
} sr_op;
#define SR_OP_SIZE_1_0 UINT32_C(88)

#define SR_OP_INFO_NATIVE UINT32_C(1)  /* better than separate sends and receives */
#define SR_OP_INFO_ORDERED UINT32_C(2) /* reduces in the order of the members: the same bits for any buffers */
#define SR_OP_INFO_ASYNC UINT32_C(4)   /* makes progress while the host computes */
/* Since 1.2: ORDERED, and each sum is rounded to the dtype before the next element is added: ((0 + 1) + 2) + …. Sums
 * of F16 and BF16 are rounded to float32 instead, and the last one to the dtype; a host counts them as stepwise only
 * with SR_OP_INFO_ROUNDED_ONCE. All transports with this flag give the same bits. */
#define SR_OP_INFO_STEPWISE UINT32_C(8)
/* Since 1.6: F16 and BF16 are reduced in float32 and rounded once (see SR_REDUCE_SUM). If such a sum or product of
 * more than two members lacks the flag, the host builds it from SEND and RECV, if its buffers are host memory. */
#define SR_OP_INFO_ROUNDED_ONCE UINT32_C(16)

typedef struct sr_op_info {
  uint32_t struct_size;
  uint32_t flags; /* SR_OP_INFO_... */
  uint64_t scratch_bytes;
} sr_op_info;
#define SR_OP_INFO_SIZE_1_0 UINT32_C(16)

#define SR_TRANSPORT_SAME_HOST UINT32_C(1) /* reaches only ranks of one machine */
/* since 1.2: opens only in ranks that a launcher of its own (mpirun) started */
#define SR_TRANSPORT_OWN_LAUNCHER UINT32_C(2)
/* since 1.9: transport = auto can choose this transport if it reaches the ranks, moves their memory and opens no other
 * transport. Transports that move a device's memory come first, then those within one machine. */
#define SR_TRANSPORT_AUTOMATIC UINT32_C(4)

/// What a transport can do; known before it is opened.
typedef struct sr_transport_props {
  uint32_t struct_size;
  uint32_t flags;        /* SR_TRANSPORT_... */
  uint32_t memory_kinds; /* the kinds that it can move: bit 1 << kind for each; 0: only host memory */
  uint32_t reserved;     /* zero */
  uint32_t queue_kinds;  /* since 1.6: the kinds that op_enqueue takes: bit 1 << kind for each; 0: it takes none */
} sr_transport_props;
#define SR_TRANSPORT_PROPS_SIZE_1_0 UINT32_C(16)

typedef struct sr_transport_stats {
  uint32_t struct_size;
  uint32_t reserved;   /* zero */
  uint64_t wire_bytes; /* sent by this rank to others since open, headers included, by whatever means */
} sr_transport_stats;
#define SR_TRANSPORT_STATS_SIZE_1_0 UINT32_C(16)

/// When an op's latest run was in progress, in nanoseconds of CLOCK_MONOTONIC. Since 1.2.
typedef struct sr_op_times {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  int64_t begun;     /* when the transport began to work on it, which can be after its start */
  int64_t ended;     /* when it was complete, which can be long before its wait */
  /* Since 1.9, in nanoseconds; 0 if not known */
  int64_t starved; /* time in which a thread of the transport could have worked on the op and had no core */
  int64_t yielded; /* time in which the calling thread gave its core to others, because the op waited for other ranks */
} sr_op_times;
#define SR_OP_TIMES_SIZE_1_2 UINT32_C(24)

/// How fast long messages came in from another rank, over all groups since open. Since 1.9. The time of a message is
/// that from the arrival of its first bytes to that of its last. A message of which all came at once does not count.
typedef struct sr_arrivals {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  uint64_t bytes;
  uint64_t nanoseconds; /* the sum of the messages' times */
} sr_arrivals;
#define SR_ARRIVALS_SIZE_1_9 UINT32_C(24)

/// What the host provides to a transport, from `configure` until `close` returns. Every function is ANY.
typedef struct sr_transport_host {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Nanoseconds of CLOCK_MONOTONIC, the clock of all deadlines.
  int64_t (*now)(void* self);
  /// Non-zero once the job is ending. Every wait should then give up with SR_ABORTED.
  uint32_t (*aborted)(void* self);
  /// Sets a key in the store by which ranks find each other. A key can be set only once. Values must be few and small.
  int32_t (*store_set)(void* self, const char* key, const void* value, uint64_t bytes, sr_error* error);
  /// Waits until the key is set, or fails with SR_TIMEOUT at `deadline`. The end of the job does not always end the
  /// wait. So a transport should wait for a short time, check `aborted`, and wait again. `*bytes` is the capacity of
  /// `value` before the call and the value's size after it. Returns SR_INVALID if the value does not fit.
  int32_t (*store_get)(void* self, const char* key, void* value, uint64_t* bytes, int64_t deadline, sr_error* error);
  /// For a transport that wraps another: makes a new instance of the transport `name`, not opened yet. The host closes
  /// it after this transport.
  int32_t (*open_transport)(void* self, const char* name, const sr_plugin** plugin, sr_error* error);
  /// Since 1.2. Gets the section [transport.NAME] of the job file, with its defaults, for a transport from
  /// open_transport: the `options` of its configuration. Valid until the transport that wraps it is closed.
  int32_t (*transport_options)(void* self, const char* name, const sr_option_value** options, uint32_t* option_count,
                               uint32_t* option_stride, sr_error* error);
} sr_transport_host;
#define SR_TRANSPORT_HOST_SIZE_1_0 UINT32_C(56)

/// Identifies this rank, for `open`. Read only during the call, except `host`.
typedef struct sr_transport_config {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t world_size;
  uint32_t local_rank; /* among the ranks of this machine */
  uint32_t local_world_size;
  uint32_t option_stride;
  const sr_transport_host* host;
  const char* job;     /* unique to this run, the same on every rank: [a-z0-9]+ */
  const char* address; /* of this machine; listeners bind to it */
  const sr_option_value* options;
  uint32_t option_count;
  uint32_t reserved;        /* zero */
  int64_t deadline;         /* by which the transport is open or gives up */
  const uint32_t* machines; /* since 1.2: for each rank of the world, its machine's number; NULL: not known */
  /* since 1.4: 32 bytes, the same on every rank of this run and known to no one else. Ranks authenticate each other and
   * derive keys with it. Read only during the call. NULL: the host has none. Do not pass it to another process. */
  const uint8_t* secret;
} sr_transport_config;
#define SR_TRANSPORT_CONFIG_SIZE_1_0 UINT32_C(72)

/// Since 1.2. What is known of a job before any of its processes runs, for `configure`. Read only during the call,
/// except `host`, whose `now`, `open_transport` and `transport_options` work from here on, the rest from `open` on.
typedef struct sr_transport_setup {
  uint32_t struct_size;
  uint32_t world_size; /* 0: not known */
  const sr_option_value* options;
  uint32_t option_count;
  uint32_t option_stride;
  const sr_transport_host* host;
} sr_transport_setup;
#define SR_TRANSPORT_SETUP_SIZE_1_2 UINT32_C(32)

/// Some ranks of the world. Their order numbers them within the group. Every member passes the same list.
typedef struct sr_group {
  uint32_t struct_size;
  uint32_t rank; /* this rank's index into `members` */
  const uint32_t* members;
  uint32_t member_count;
  uint32_t reserved; /* zero */
  const char* name;  /* for messages: a mesh axis */
  uint64_t id;       /* unique among the groups that a rank is in at the same time, and the same on all members */
  int64_t deadline;  /* by which the group is connected or gives up */
} sr_group;
#define SR_GROUP_SIZE_1_0 UINT32_C(48)

/// The functions of a plugin of SR_KIND_TRANSPORT. Handles are numbers that the transport chooses, never 0. An error
/// names the op, the peer, and what was waited for.
typedef struct sr_transport {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  /// ANY, also before open. Says what the transport can do.
  int32_t (*props)(void* self, sr_transport_props* props, sr_error* error);
  /// ANY, also before open. Pure. Says what the op needs in a group of that size. Buffers need not have data. If it
  /// returns SR_UNIMPLEMENTED, the host builds the op from SEND and RECV, which are mandatory, in another group of the
  /// same members. The host creates that group when it first prepares such an op of a group.
  int32_t (*op_query)(void* self, const sr_op* op, uint32_t group_size, sr_op_info* info, sr_error* error);
  /// INIT. Called once on every rank of the world. It can wait for the other ranks.
  int32_t (*open)(void* self, const sr_transport_config* config, sr_error* error);
  /// INIT. Ends everything that remains, without waiting for any peer.
  int32_t (*close)(void* self, sr_error* error);
  /// ANY. Returns statistics.
  int32_t (*stats)(void* self, sr_transport_stats* stats, sr_error* error);
  /// INIT. Concerns this rank alone. The memory stays valid until it is deregistered, after its ops have been freed.
  int32_t (*mem_register)(void* self, const sr_memory* memory, uint64_t* registration, sr_error* error);
  int32_t (*mem_deregister)(void* self, uint64_t registration, sr_error* error);
  /// INIT. Connects a group. Called on every member. Groups that share members are created in the same order on all.
  int32_t (*group_create)(void* self, const sr_group* group, uint64_t* handle, sr_error* error);
  /// ANY. Returns SR_OK, or why the group failed.
  int32_t (*group_error)(void* self, uint64_t group, sr_error* error);
  /// ANY. Fails the group on this rank with SR_ABORTED and `reason`. Does not wait. Peers notice by themselves or are
  /// aborted by their hosts.
  int32_t (*group_abort)(void* self, uint64_t group, const char* reason, sr_error* error);
  /// INIT. The group's ops have been freed before. Does not wait for peers.
  int32_t (*group_destroy)(void* self, uint64_t group, sr_error* error);
  /// GROUP. Prepares ops that are started, waited for and freed together, in no particular order: one collective, or
  /// several sends and receives. Members prepare their collectives in the same order, and the call can wait for the
  /// other members. If their ops do not match, it returns SR_INVALID on every member, and the group stays usable. A
  /// send matches the receive with the same id and the same index among the ops with that id between the two members.
  int32_t (*op_prepare)(void* self, uint64_t group, const sr_op* ops, uint32_t op_count, uint32_t op_stride,
                        int64_t deadline, uint64_t* handle, sr_error* error);
  /// GROUP. Returns at once. `queue`: NULL, or until 1.5 a CUstream that orders the op. Members start the ops of a
  /// group in the same order. If they do not, each op must still fail or have the right result by its deadline.
  /// `deadline` is the op's own.
  int32_t (*op_start)(void* self, uint64_t op, void* queue, int64_t deadline, sr_error* error);
  /// GROUP. Returns SR_OK if the op is complete, SR_PENDING if it is not, or why it failed.
  int32_t (*op_test)(void* self, uint64_t op, sr_error* error);
  /// GROUP. Returns SR_OK when the op is complete, SR_TIMEOUT if `deadline` passed first, or why it failed.
  int32_t (*op_wait)(void* self, uint64_t op, int64_t deadline, sr_error* error);
  /// GROUP. Frees an op that is complete, or whose group has failed; in the latter case it waits until nothing accesses
  /// the op's buffers.
  int32_t (*op_free)(void* self, uint64_t op, sr_error* error);
  /// Since 1.2; may be NULL. GROUP, once the op is complete. Says when the op ran, which shows how much of it
  /// overlapped with other work of the host. Returns SR_UNIMPLEMENTED if that is not known.
  int32_t (*op_times)(void* self, uint64_t op, sr_op_times* times, sr_error* error);
  /// INIT. Since 1.2; may be NULL. Called once, before everything else, also in a process that is not a rank. It
  /// refuses invalid options with SR_INVALID, before any process of the job starts. A transport that wraps another
  /// opens it here; the inner one is configured when open_transport returns.
  int32_t (*configure)(void* self, const sr_transport_setup* setup, sr_error* error);
  /// INIT, after configure; since 1.2, NULL if it is not offered. Tells ranks that another launcher (mpirun, srun)
  /// started where to meet, before there is a store. Called on every rank, it waits for all ranks, and fills `data` on
  /// each with rank 0's. `bytes` is the same on all, at most 4096. The host need not open this instance afterwards.
  int32_t (*share_first)(void* self, uint32_t rank, uint32_t world_size, void* data, uint64_t bytes, sr_error* error);
  /// GROUP. Since 1.6; may be NULL; then op_join must be NULL, too. Starts an op in a queue: it begins once the queue's
  /// earlier work is done. The call does not wait for that work. In the group's first op it can wait until the members
  /// have connected. Work that the queue gets later waits for the op only after op_join. Ops of a group begin in
  /// the order in which they were started or enqueued, whatever their queues. `timeout`: nanoseconds that the op may
  /// take after the queue has reached it; INT64_MAX: no limit. Returns SR_INVALID for a queue not of `queue_kinds`.
  int32_t (*op_enqueue)(void* self, uint64_t op, const sr_queue* queue, int64_t timeout, sr_error* error);
  /// GROUP. Since 1.6. Makes work that the queue gets later wait for the op, which was started or enqueued. The host
  /// does not wait. The queue also continues if the op fails: the host tests the op, or waits for it, before it starts
  /// the op again or uses the result.
  int32_t (*op_join)(void* self, uint64_t op, const sr_queue* queue, sr_error* error);
  /// ANY, after open. Since 1.9; may be NULL. How fast long messages came in from this rank of the world, which shows
  /// how fast the link is. Returns SR_UNIMPLEMENTED if that is not known.
  int32_t (*arrivals)(void* self, uint32_t rank, sr_arrivals* arrivals, sr_error* error);
} sr_transport;
#define SR_TRANSPORT_SIZE_1_0 UINT32_C(136)

#ifdef __cplusplus
}
#endif
