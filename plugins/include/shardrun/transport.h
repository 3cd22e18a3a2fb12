#pragma once

/// A transport moves bytes between the ranks of a job. The host allocates all memory, decides what is moved and
/// when; the transport connects ranks into groups and carries out ops on them.
///
/// Lifetime: shardrun_open_v1, then `configure`; then `props` and `op_query` at any time; `open` once on every rank of
/// the world; `mem_register`, `group_create`; ops; the same backwards; `close`; sr_plugin::close.
///
/// An op is prepared once and started again and again. Its life is prepare, (start, wait)*, free. It is complete on a
/// rank when its result is there and no peer touches that rank's buffers for it any more.
///
/// Deadlines are absolute, in nanoseconds of CLOCK_MONOTONIC; INT64_MAX is never. A wait that ends with SR_TIMEOUT
/// leaves the op running. An op that is past its own deadline fails its group.
///
/// A group that has failed stays failed: each op of it, pending or new, ends with an error (SR_ABORTED where it was
/// aborted, SR_PEER_LOST or SR_TIMEOUT where that was the cause) within a second.
///
/// Where a member's process ends, what waits for it fails with SR_PEER_LOST, long before its deadline, and the error
/// names the rank. Members that wait for others alone are aborted by their hosts. What needs nothing of it goes on.
///
/// An error with SR_PEER_LOST or SR_TIMEOUT says in sr_error::awaited which rank of the world is gone or was waited
/// for; of several, any. The host tells by it which rank failed first.

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

#define SR_REDUCE_SUM UINT32_C(1)
#define SR_REDUCE_PRODUCT UINT32_C(2)
#define SR_REDUCE_MIN UINT32_C(3) /* of both: NaN where any member's element is NaN */
#define SR_REDUCE_MAX UINT32_C(4)

/// What an op does. n is the size of its group; blocks stand in the order of the group's members, one after the other.
/// In place: send and recv are one buffer; ALL_GATHER(V): send is recv's block of this rank; REDUCE_SCATTER(V): recv is
/// send's block of this rank. Otherwise send and recv do not overlap, and send is left as it was. ALL_TO_ALL(V), GATHER
/// and SCATTER are never in place.
#define SR_OP_SEND UINT32_C(1)             /* count elements of send to peer */
#define SR_OP_RECV UINT32_C(2)             /* count elements from peer into recv */
#define SR_OP_BARRIER UINT32_C(3)          /* no buffer; no member leaves before each has entered */
#define SR_OP_BROADCAST UINT32_C(4)        /* count elements of peer's send into every recv, peer's too */
#define SR_OP_REDUCE UINT32_C(5)           /* the reduction of every send, count elements, into peer's recv */
#define SR_OP_ALL_REDUCE UINT32_C(6)       /* the same into every recv: the same bits on every member */
#define SR_OP_ALL_GATHER UINT32_C(7)       /* count elements of every send, in order, into every recv of n * count */
#define SR_OP_ALL_GATHERV UINT32_C(8)      /* the same, recv_counts[i] elements from member i */
#define SR_OP_REDUCE_SCATTER UINT32_C(9)   /* block i, of count elements, of the reduction of the sends to member i */
#define SR_OP_REDUCE_SCATTERV UINT32_C(10) /* the same, block i of recv_counts[i] elements */
#define SR_OP_ALL_TO_ALL UINT32_C(11)  /* block i of send, of count elements, to member i; from i to block i of recv */
#define SR_OP_ALL_TO_ALLV UINT32_C(12) /* the same, send_counts[i] elements to and recv_counts[i] from member i */
#define SR_OP_GATHER UINT32_C(13)      /* count elements of every send into peer's recv of n * count */
#define SR_OP_SCATTER UINT32_C(14)     /* block i, of count elements, of peer's send into member i's recv */

/// The caller waits right after starting: nothing is gained by work in the background.
#define SR_OP_FLAG_BLOCKING UINT32_C(1)

/// Memory of the host that ops will use, an arena as a rule.
typedef struct sr_memory {
  uint32_t struct_size;
  uint32_t kind; /* SR_MEMORY_... */
  void* data;
  uint64_t bytes;
  uint64_t descriptor_offset;
  int32_t descriptor; /* of a file whose bytes from descriptor_offset on are this memory, which others may map; or -1 */
  uint32_t device;    /* of SR_MEMORY_CUDA: its ordinal */
} sr_memory;
#define SR_MEMORY_SIZE_1_0 UINT32_C(40)

typedef struct sr_buffer {
  uint32_t struct_size;
  uint32_t kind; /* SR_MEMORY_... */
  void* data;    /* may be NULL where bytes is 0 */
  uint64_t bytes;
  uint64_t registration; /* of the memory that it lies in; 0: not registered */
  uint32_t device;
  uint32_t reserved; /* zero */
} sr_buffer;
#define SR_BUFFER_SIZE_1_0 UINT32_C(40)

/// One op as one member of a group sees it. What all members must agree on: opcode, dtype, reduction, id, counts (what
/// one sends is what the other expects), and peer where it is a root.
typedef struct sr_op {
  uint32_t struct_size;
  uint32_t opcode;    /* SR_OP_... */
  uint32_t dtype;     /* SR_DTYPE_...; none for a barrier */
  uint32_t reduction; /* SR_REDUCE_... of the ops that reduce */
  uint32_t peer;      /* an index into the group: the other member of SEND and RECV, or the root of what has one */
  uint32_t flags;     /* SR_OP_FLAG_...; an unknown one is skipped */
  uint64_t id;        /* chosen by the host, unique within the group among the ops that are prepared */
  uint64_t count;     /* elements, as the opcode says */
  const uint64_t* send_counts; /* of the V forms, one a member; read during the call alone */
  const uint64_t* recv_counts;
  const sr_buffer* send; /* NULL where the op has none on this member; read during the call alone */
  const sr_buffer* recv;
  const sr_buffer* scratch; /* of at least sr_op_info::scratch_bytes, this op's own; NULL where that is 0 */
  const char* label;        /* what is moved, for messages: a tensor's name; may be NULL */
} sr_op;
#define SR_OP_SIZE_1_0 UINT32_C(88)

#define SR_OP_INFO_NATIVE UINT32_C(1)  /* more than the sum of sends and receives */
#define SR_OP_INFO_ORDERED UINT32_C(2) /* reduces in the order of the members: the same bits for any buffers */
#define SR_OP_INFO_ASYNC UINT32_C(4)   /* makes progress while the host computes */
/* Since 1.2: ORDERED, and each sum rounded to the dtype before the next element is added, ((0 + 1) + 2) + …: the same
   bits over any transport that says so. */
#define SR_OP_INFO_STEPWISE UINT32_C(8)

typedef struct sr_op_info {
  uint32_t struct_size;
  uint32_t flags; /* SR_OP_INFO_... */
  uint64_t scratch_bytes;
} sr_op_info;
#define SR_OP_INFO_SIZE_1_0 UINT32_C(16)

#define SR_TRANSPORT_SAME_HOST UINT32_C(1) /* reaches ranks of one machine only */
/* since 1.2: opens in ranks that a launcher of its own (mpirun) started, and in no others */
#define SR_TRANSPORT_OWN_LAUNCHER UINT32_C(2)

/// What a transport can do, before it is opened.
typedef struct sr_transport_props {
  uint32_t struct_size;
  uint32_t flags;        /* SR_TRANSPORT_... */
  uint32_t memory_kinds; /* the kinds that it moves: bit 1 << kind of each */
  uint32_t reserved;     /* zero */
} sr_transport_props;
#define SR_TRANSPORT_PROPS_SIZE_1_0 UINT32_C(16)

typedef struct sr_transport_stats {
  uint32_t struct_size;
  uint32_t reserved;   /* zero */
  uint64_t wire_bytes; /* that this rank gave to others since open, headers included, by whatever means */
} sr_transport_stats;
#define SR_TRANSPORT_STATS_SIZE_1_0 UINT32_C(16)

/// When an op's latest run was under way, in nanoseconds of CLOCK_MONOTONIC. Since 1.2.
typedef struct sr_op_times {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  int64_t begun;     /* when the transport began to work on it, which may be after its start */
  int64_t ended;     /* when it was complete, which may be long before its wait */
} sr_op_times;
#define SR_OP_TIMES_SIZE_1_2 UINT32_C(24)

/// What the host lends an opened transport until its close returns. Every function is ANY.
typedef struct sr_transport_host {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Nanoseconds of CLOCK_MONOTONIC: the clock of all deadlines.
  int64_t (*now)(void* self);
  /// Non-zero once the job is to end: whatever waits should give up with SR_ABORTED.
  uint32_t (*aborted)(void* self);
  /// A key-value store that all ranks share, for meeting each other: small values, few of them. A key is set once.
  int32_t (*store_set)(void* self, const char* key, const void* value, uint64_t bytes, sr_error* error);
  /// Waits until the key is set, at most until `deadline`: SR_TIMEOUT. The end of the job need not end it: a transport
  /// waits for a short time, looks at `aborted`, and waits again. `*bytes` is the capacity of `value` going in and the
  /// value's size coming out; SR_INVALID where the value does not fit.
  int32_t (*store_get)(void* self, const char* key, void* value, uint64_t* bytes, int64_t deadline, sr_error* error);
  /// For a transport that wraps another: a fresh instance of the transport `name`, not opened yet. The host closes it
  /// after this transport.
  int32_t (*open_transport)(void* self, const char* name, const sr_plugin** plugin, sr_error* error);
  /// Since 1.2. What the job says in [transport.NAME] to one that open_transport has opened, with its defaults: the
  /// `options` of its configuration. Valid until this transport is closed.
  int32_t (*transport_options)(void* self, const char* name, const sr_option_value** options, uint32_t* option_count,
                               uint32_t* option_stride, sr_error* error);
} sr_transport_host;
#define SR_TRANSPORT_HOST_SIZE_1_0 UINT32_C(56)

/// Who this rank is, for `open`; read during the call alone, but for `host`.
typedef struct sr_transport_config {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t world_size;
  uint32_t local_rank; /* among the ranks of this machine */
  uint32_t local_world_size;
  uint32_t option_stride;
  const sr_transport_host* host;
  const char* job;     /* of this run alone, the same on every rank: [a-z0-9]+ */
  const char* address; /* the address of this machine that listeners bind to */
  const sr_option_value* options;
  uint32_t option_count;
  uint32_t reserved;        /* zero */
  int64_t deadline;         /* by which the transport is open or gives up */
  const uint32_t* machines; /* since 1.2: of each rank of the world the number of its machine; NULL: not known */
  /* since 1.4: 32 bytes, the same on every rank of this run and known to nobody else, by which ranks prove to each
     other who they are and from which they derive keys; read during the call alone; NULL: the host has none. Keep it to
     this process. */
  const uint8_t* secret;
} sr_transport_config;
#define SR_TRANSPORT_CONFIG_SIZE_1_0 UINT32_C(72)

/// Since 1.2. What is known of a job before any of its processes runs, for `configure`; read during the call alone, but
/// for `host`, which lends `now`, `open_transport` and `transport_options` from here on, and all else from `open` on.
typedef struct sr_transport_setup {
  uint32_t struct_size;
  uint32_t world_size; /* 0: not known */
  const sr_option_value* options;
  uint32_t option_count;
  uint32_t option_stride;
  const sr_transport_host* host;
} sr_transport_setup;
#define SR_TRANSPORT_SETUP_SIZE_1_2 UINT32_C(32)

/// Some ranks of the world, in the order that numbers them within the group. Every member gives the same.
typedef struct sr_group {
  uint32_t struct_size;
  uint32_t rank; /* this rank's index into `members` */
  const uint32_t* members;
  uint32_t member_count;
  uint32_t reserved; /* zero */
  const char* name;  /* for messages: a mesh axis */
  uint64_t id;       /* unique among the groups that a rank is in at one time, and the same on all members */
  int64_t deadline;  /* by which the group is connected or gives up */
} sr_group;
#define SR_GROUP_SIZE_1_0 UINT32_C(48)

/// The functions of a plugin of SR_KIND_TRANSPORT. Handles are the transport's own numbers, never 0.
/// An error names the op, the peer and what was waited for.
typedef struct sr_transport {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  /// ANY, also before open.
  int32_t (*props)(void* self, sr_transport_props* props, sr_error* error);
  /// ANY, also before open. Pure. What the op takes in a group of that size; its buffers may lack their data.
  /// SR_UNIMPLEMENTED: the host then builds the op from SEND and RECV, which are mandatory, in another group of the
  /// same members that it creates where the first such op of a group is prepared.
  int32_t (*op_query)(void* self, const sr_op* op, uint32_t group_size, sr_op_info* info, sr_error* error);
  /// INIT. Every rank of the world calls it; it may wait for the others.
  int32_t (*open)(void* self, const sr_transport_config* config, sr_error* error);
  /// INIT. Ends what is still there without waiting for any peer.
  int32_t (*close)(void* self, sr_error* error);
  /// ANY.
  int32_t (*stats)(void* self, sr_transport_stats* stats, sr_error* error);
  /// INIT. Local. The memory stays until it is deregistered, which comes after its ops are freed.
  int32_t (*mem_register)(void* self, const sr_memory* memory, uint64_t* registration, sr_error* error);
  int32_t (*mem_deregister)(void* self, uint64_t registration, sr_error* error);
  /// INIT. Every member calls it; groups that share members are created in one order on all of them.
  int32_t (*group_create)(void* self, const sr_group* group, uint64_t* handle, sr_error* error);
  /// ANY. SR_OK, or why the group failed.
  int32_t (*group_error)(void* self, uint64_t group, sr_error* error);
  /// ANY. Fails the group on this rank with SR_ABORTED and `reason`; waits for nobody. Peers find out by their own
  /// means or are aborted by their host.
  int32_t (*group_abort)(void* self, uint64_t group, const char* reason, sr_error* error);
  /// INIT. Its ops are freed before. Waits for nobody.
  int32_t (*group_destroy)(void* self, uint64_t group, sr_error* error);
  /// GROUP. Prepares ops that are started, waited for and freed as one, without order among them: one collective, or
  /// several sends and receives. Members prepare their collectives in one order, and it may wait for them; where they
  /// do not all mean the same op, it ends with SR_INVALID on all of them, and the group goes on. A send and a receive
  /// find each other by their id and their place among the ops between these two members with that id.
  int32_t (*op_prepare)(void* self, uint64_t group, const sr_op* ops, uint32_t op_count, uint32_t op_stride,
                        int64_t deadline, uint64_t* handle, sr_error* error);
  /// GROUP. Returns at once. `queue` is the device stream that the op is ordered in, NULL for host memory. Members
  /// start the ops of a group in one order; where they do not, each op fails or has the right result, by its deadline.
  /// `deadline` is the op's own.
  int32_t (*op_start)(void* self, uint64_t op, void* queue, int64_t deadline, sr_error* error);
  /// GROUP. SR_OK when the op is complete, SR_PENDING when not, or why it failed.
  int32_t (*op_test)(void* self, uint64_t op, sr_error* error);
  /// GROUP. SR_OK when the op is complete, SR_TIMEOUT when `deadline` passed before, or why it failed.
  int32_t (*op_wait)(void* self, uint64_t op, int64_t deadline, sr_error* error);
  /// GROUP. The op is complete, or its group failed; then it waits until nothing touches the op's buffers.
  int32_t (*op_free)(void* self, uint64_t op, sr_error* error);
  /// Since 1.2; may be NULL. GROUP, once the op is complete: how much of it went on while the host did something else
  /// follows from it. SR_UNIMPLEMENTED where it is not known.
  int32_t (*op_times)(void* self, uint64_t op, sr_op_times* times, sr_error* error);
  /// INIT. Since 1.2; may be NULL. Once, before all else, also in a process that is no rank: what the options ask for
  /// is refused here with SR_INVALID, before any process of the job starts. A transport that wraps another opens it
  /// here, which has been configured when open_transport returns.
  int32_t (*configure)(void* self, const sr_transport_setup* setup, sr_error* error);
  /// INIT, before open; since 1.2, and NULL where it is not offered. How ranks that another launcher started (mpirun,
  /// srun) hear where they meet, before there is a store: every rank of the world calls it, and on return `data` holds
  /// on each of them what rank 0 has put there. `bytes` is the same on all, at most 4096. It waits for all ranks.
  int32_t (*share_first)(void* self, uint32_t rank, uint32_t world_size, void* data, uint64_t bytes, sr_error* error);
} sr_transport;
#define SR_TRANSPORT_SIZE_1_0 UINT32_C(136)

#ifdef __cplusplus
}
#endif
