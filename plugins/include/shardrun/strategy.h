#pragma once

/// A strategy decides how a program is split. It reads a summary of the job and of the graph, and writes a plan. The
/// host derives every collective from the plan. Hooks do what a plan cannot express: work between backward and the
/// update (compression of gradients), or after a step (replicas that synchronise now and then).

#include <shardrun/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/// An axis of the mesh of ranks. A rank's coordinate along the last axis varies fastest.
typedef struct sr_mesh_axis {
  uint32_t struct_size;
  uint32_t size;
  const char* name;
} sr_mesh_axis;
#define SR_MESH_AXIS_SIZE_1_0 UINT32_C(16)

/// A line of the job file's section [sharding], unchanged: what is placed, and where.
typedef struct sr_sharding {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const char* key;
  const char* value;
  const char* where; /* "job.ini:12", the prefix of a message about this line */
} sr_sharding;
#define SR_SHARDING_SIZE_1_1 UINT32_C(32)

/// The job's request.
typedef struct sr_job {
  uint32_t struct_size;
  uint32_t ranks;
  const sr_mesh_axis* mesh; /* the job file's mesh; empty if it has none */
  uint32_t mesh_count;
  uint32_t mesh_stride;
  const sr_option_value* options;
  uint32_t option_count;
  uint32_t option_stride;
  uint32_t microbatches; /* in an optimizer step; since 1.1 */
  uint32_t reserved;     /* zero */
  /* Since 1.1: the lines of [sharding], in their order; none for a strategy without SR_STRATEGY_READS_SHARDING. */
  const sr_sharding* sharding;
  uint32_t sharding_count;
  uint32_t sharding_stride;
} sr_job;
#define SR_JOB_SIZE_1_0 UINT32_C(40)

/// A logical axis: the name that models give to a dimension (`batch`, `embed`, `heads`, …). "heads/3" has one index for
/// three of "heads", and a rule for "heads" holds for it, too. A strategy that places tensors by dimensions should
/// split "heads/3" as it splits "heads".
typedef struct sr_axis {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const char* name;
  int64_t size; /* of the whole axis; the largest one if tensors differ */
} sr_axis;
#define SR_AXIS_SIZE_1_0 UINT32_C(24)

/// A tensor of the graph's state, with its global shape. A parameter's gradient and optimizer state are not separate
/// tensors here: they are roles of the parameter. A strategy skips kinds that it does not know.
typedef struct sr_tensor {
  uint32_t struct_size;
  uint32_t kind; /* SR_TENSOR_... */
  const char* name;
  const int64_t* shape;
  const char* const* axes; /* each dimension's logical axis; "" where it has none */
  uint64_t bytes;
  uint32_t rank;     /* dimensions: the length of shape and axes */
  int32_t layer;     /* index into the layers; -1 outside them */
  uint32_t tied_set; /* tensors with the same non-zero number are one weight; 0: not tied */
  uint32_t reserved; /* zero */
} sr_tensor;
#define SR_TENSOR_SIZE_1_0 UINT32_C(56)

/// A value between two parts of a model. The model names it so that its placement can be set.
typedef struct sr_cut_point {
  uint32_t struct_size;
  uint32_t rank;
  const char* name;
  const int64_t* shape;
  const char* const* axes;
  uint64_t bytes;
  int32_t layer;     /* index into the layers; -1 outside them */
  uint32_t reserved; /* zero */
} sr_cut_point;
#define SR_CUT_POINT_SIZE_1_0 UINT32_C(48)

/// A repeated layer of the model. FLOPs count one optimizer step over the whole batch.
typedef struct sr_layer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const char* name;
  uint64_t parameter_bytes;
  uint64_t forward_flops;
  uint64_t backward_input_flops;
  uint64_t backward_weight_flops;
  double seconds; /* of all this work on one rank, as predicted from the job's [cluster]; 0: unknown; since 1.9 */
} sr_layer;
#define SR_LAYER_SIZE_1_0 UINT32_C(48)

/// What can be placed. Names are unique within their array.
typedef struct sr_graph {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const sr_tensor* tensors;
  uint32_t tensor_count;
  uint32_t tensor_stride;
  const sr_axis* axes;
  uint32_t axis_count;
  uint32_t axis_stride;
  const sr_cut_point* cut_points;
  uint32_t cut_point_count;
  uint32_t cut_point_stride;
  const sr_layer* layers;
  uint32_t layer_count;
  uint32_t layer_stride;
  const sr_layer* before; /* since 1.1: what comes before the first layer, described like a layer */
  const sr_layer* behind; /* since 1.1: what comes after the last layer */
} sr_graph;
#define SR_GRAPH_SIZE_1_0 UINT32_C(72)

/// A split with this `dim`, which only sr_plan_writer.place_tensor takes, splits the elements in row-major order. If
/// dimensions are split too, it splits the elements that those splits leave to a rank. Each rank gets a contiguous run;
/// sizes of runs differ by at most one element. Since 1.3; older hosts refuse it.
#define SR_DIM_FLAT UINT32_MAX

/// One dimension, split over these mesh axes, major to minor. Splits need not divide evenly.
typedef struct sr_split {
  uint32_t struct_size;
  uint32_t dim;     /* the dimension's index, where `axis` is NULL; or SR_DIM_FLAT */
  const char* axis; /* the dimension's logical axis, or NULL */
  const char* const* mesh_axes;
  uint32_t mesh_axis_count;
  uint32_t reserved; /* zero */
} sr_split;
#define SR_SPLIT_SIZE_1_0 UINT32_C(32)

/// Consecutive layers on one stage of a pipeline. The first chunk also includes what comes before the layers, the last
/// what comes after them.
typedef struct sr_chunk {
  uint32_t struct_size;
  uint32_t first_layer; /* the chunk's layers end where the next chunk begins; a chunk can have none */
  uint32_t stage;       /* the coordinate along the pipeline's mesh axis */
  uint32_t reserved;    /* zero */
} sr_chunk;
#define SR_CHUNK_SIZE_1_1 UINT32_C(16)

#define SR_ACTION_FORWARD UINT32_C(1)
#define SR_ACTION_BACKWARD UINT32_C(2)        /* both of the following */
#define SR_ACTION_BACKWARD_INPUT UINT32_C(3)  /* the gradients of activations, which the previous chunk waits for */
#define SR_ACTION_BACKWARD_WEIGHT UINT32_C(4) /* the gradients of parameters */

/// One unit of a stage's work.
typedef struct sr_action {
  uint32_t struct_size;
  uint32_t kind; /* SR_ACTION_... */
  uint32_t chunk;
  uint32_t microbatch;
} sr_action;
#define SR_ACTION_SIZE_1_1 UINT32_C(16)

#define SR_HOOK_SYNC_GRADIENTS UINT32_C(1)
#define SR_HOOK_AFTER_STEP UINT32_C(2)

#define SR_HOOK_STATE_ZERO UINT32_C(1)
#define SR_HOOK_STATE_TENSOR UINT32_C(2) /* for after_step: the tensor's value when the run begins */

/// The part that this rank has of one of a hook's tensors, or of its gradient. Since 1.1, like everything about hooks.
typedef struct sr_hook_tensor {
  uint32_t struct_size;
  uint32_t rank;
  const char* name;     /* the tensor's */
  const int64_t* shape; /* of this rank's part, which is row-major; one dimension for a run of elements */
  uint64_t first;       /* index of its first element in the group */
} sr_hook_tensor;
#define SR_HOOK_TENSOR_SIZE_1_1 UINT32_C(32)

/// Tensors that a hook processes together. They are contiguous in memory, as if they were one. All are split over the
/// same mesh axes, and vary over the same mesh axes. Ranks that hold the same tensors get the same groups.
typedef struct sr_hook_group {
  uint32_t struct_size;
  uint32_t hook;     /* SR_HOOK_... */
  uint64_t elements; /* float32 elements of all tensors, on this rank; at least 1, the same on every member */
  uint32_t members;  /* ranks along the hook's mesh axis; since 1.8 also 1 */
  uint32_t states;   /* number of states that the hook has declared */
  const sr_hook_tensor* tensors;
  uint32_t tensor_count;
  uint32_t tensor_stride;
} sr_hook_group;
#define SR_HOOK_GROUP_SIZE_1_1 UINT32_C(40)

/// All members' blocks have the same size and come in the order of the members. Only float32 can be summed; integers
/// are only moved.
#define SR_EXCHANGE_ALL_REDUCE UINT32_C(1)     /* the sum; receives as many elements as it sends; may be in place */
#define SR_EXCHANGE_ALL_GATHER UINT32_C(2)     /* receives a block from each member, each as large as what is sent */
#define SR_EXCHANGE_REDUCE_SCATTER UINT32_C(3) /* sends a block for each member, receives the sum of its own */
#define SR_EXCHANGE_ALL_TO_ALL UINT32_C(4)     /* sends a block to each member, and receives one from each */

/// A collective of the members on whole buffers. Buffer numbers: 0 is the group's tensors; then come the hook's states,
/// in the order of their declaration; then the buffers that add_buffer made.
typedef struct sr_exchange {
  uint32_t struct_size;
  uint32_t kind; /* SR_EXCHANGE_... */
  uint32_t send;
  uint32_t receive; /* a different buffer, except for an all_reduce in place */
} sr_exchange;
#define SR_EXCHANGE_SIZE_1_1 UINT32_C(16)

/// Through this, a strategy writes what a hook does with a group: calls and exchanges, one after the other. So memory
/// and traffic are known before the run. The host owns it. It is valid only during plan_hook. The rules of
/// sr_plan_writer's functions apply.
typedef struct sr_hook_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Adds a buffer for this hook and group. It is valid from the hook's first call to its last. Its content is
  /// undefined at first.
  int32_t (*add_buffer)(void* self, uint32_t element /* SR_ELEMENT_... */, uint64_t elements, sr_error* error);
  /// Adds a call of the hook's function, which gets this number.
  int32_t (*add_call)(void* self, uint32_t call, sr_error* error);
  int32_t (*add_exchange)(void* self, const sr_exchange* exchange, sr_error* error);
} sr_hook_writer;
#define SR_HOOK_WRITER_SIZE_1_1 UINT32_C(40)

/// A call of a hook's function. The function may change only the buffers, and must keep no other data, because the host
/// can call one instance for several ranks in turn.
typedef struct sr_hook_call {
  uint32_t struct_size;
  uint32_t call; /* the number given to add_call */
  const sr_hook_group* group;
  uint32_t member; /* this rank's index along the mesh axis */
  uint32_t buffer_count;
  void* const* buffers;     /* float32, except those made with SR_ELEMENT_I32; for the numbers see sr_exchange */
  const uint64_t* elements; /* of each buffer */
  int64_t step;             /* from 0 */
  uint64_t samples;         /* in a step, over all ranks */
  uint64_t own_samples;     /* those from which the gradients at this coordinate of the mesh axis come; can be 0 */
  const sr_job* job;        /* the one that make_plan got */
} sr_hook_call;
#define SR_HOOK_CALL_SIZE_1_1 UINT32_C(72)

#define SR_ROLE_STORE UINT32_C(1)     /* where the tensor is kept between steps */
#define SR_ROLE_USE UINT32_C(2)       /* as the ops read it */
#define SR_ROLE_GRADIENT UINT32_C(3)  /* where its gradient is accumulated */
#define SR_ROLE_OPTIMIZER UINT32_C(4) /* where its optimizer state is kept and its update computed */

/// A strategy writes its plan through this. The host owns it. It is valid only during make_plan.
///
/// Globs: `*` matches any run of characters, `?` matches one, and the pattern must match the whole name. A tensor or
/// cut point that matches is placed as if it had been named. A pattern that matches nothing is refused.
///
/// A later placement, gather, list of actions or bucket size replaces an earlier one for the same thing. What is not
/// placed is replicated, or follows from what is placed: a tensor's placement takes precedence over a cut point's, and
/// a cut point's over an axis's. No mesh axis may split two dimensions of one value.
///
/// Every function is INIT, returns SR_OK or an error with its reason, and copies its arguments. After an error the plan
/// is refused, whatever make_plan returns.
typedef struct sr_plan_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Adds a mesh axis. Axes are added major to minor, and before they are used. The product of their sizes is the job's
  /// number of ranks. Every axis to which the job's mesh gives a size above 1 must be among them, with that size.
  int32_t (*add_mesh_axis)(void* self, const char* name, uint32_t size, sr_error* error);
  /// Splits the logical axis over these mesh axes wherever it occurs. Without mesh axes it stays whole.
  int32_t (*place_axis)(void* self, const char* axis, const char* const* mesh_axes, uint32_t mesh_axis_count,
                        sr_error* error);
  /// Places one role (SR_ROLE_...) of the tensors that `glob` matches. Dimensions without a split stay whole.
  int32_t (*place_tensor)(void* self, const char* glob, uint32_t role, const sr_split* splits, uint32_t split_count,
                          uint32_t split_stride, sr_error* error);
  /// Places the cut points that `glob` matches. Dimensions without a split stay whole.
  int32_t (*place_cut_point)(void* self, const char* glob, const sr_split* splits, uint32_t split_count,
                             uint32_t split_stride, sr_error* error);
  /// Sets the size of buckets, in which deferred sums of gradients are reduced. A bucket takes gradients in the order
  /// in which they become complete, at least one, and up to `bytes` in all. Parameters whose updated and stored
  /// placements differ are gathered in buckets, too. Without this call each tensor is a bucket of its own.
  int32_t (*set_bucket_bytes)(void* self, uint64_t bytes, sr_error* error);
  /// Since 1.1. For the tensors that `glob` matches and whose used and stored placements differ: gathers them just
  /// before the ops that use them, together with all others of the same `unit` (any name; NULL: each separately), and
  /// frees them after these ops. The gather overlaps with the ops before. Backward gathers them again, unless `keep` is
  /// 1: then they stay from their first use in a call to the last. Without this call they are gathered once per call,
  /// at their first use, and stay. In a pipeline nothing stays.
  int32_t (*gather_at_use)(void* self, const char* glob, const char* unit, uint32_t keep, sr_error* error);
  /// Since 1.1, called once. Splits the layers into chunks, in order, along a pipeline's mesh axis, which must split
  /// nothing else. A parameter is placed on the stage that uses it; if several stages use it, the first updates it.
  int32_t (*place_layers)(void* self, const char* mesh_axis, const sr_chunk* chunks, uint32_t chunk_count,
                          uint32_t chunk_stride, sr_error* error);
  /// Since 1.1. Sets the work of one pipeline stage in one optimizer step before the update, in order. The list has,
  /// for each chunk of the stage and each microbatch, a forward and then a backward, as one action or as its two parts.
  /// The host derives sends and receives. It refuses lists that lack something or wait for each other.
  int32_t (*set_actions)(void* self, uint32_t stage, const sr_action* actions, uint32_t action_count,
                         uint32_t action_stride, sr_error* error);
  /// Since 1.1. Each hook is set once, for one mesh axis, which must not be a pipeline's. Since 1.8 a hook also runs if
  /// that axis has a single rank; an exchange is then a copy. For a plugin of an earlier minor the hook is left out in
  /// this case.
  ///
  /// The hook sync_gradients replaces the all_reduce, over the mesh axis, of the gradients of the tensors that `glob`
  /// matches. Gradients of tensors that vary over the axis are not summed; for these the hook runs at the same point.
  /// It runs once per step for each group of gradients, as soon as they are complete and summed over all other axes.
  /// Its result is used as the gradients. It must be the same on every member, unless the tensors vary over the axis.
  /// Gradients of a loss with counts (set_loss_counts) are still sums here; the update divides them.
  int32_t (*sync_gradients)(void* self, const char* glob, const char* mesh_axis, sr_error* error);
  /// Since 1.1. The hook after_step gets the tensors that `glob` matches, which are stored whole along the mesh axis.
  /// It runs after every `every` steps and after the last step, also if a signal made it the last. Tensors that do not
  /// vary over the axis must be the same on every member before and after it.
  int32_t (*after_step)(void* self, const char* glob, const char* mesh_axis, uint32_t every, sr_error* error);
  /// Since 1.1. Gives the hook (SR_HOOK_...), which is set before, a state for each of its tensors, kept from step to
  /// step. The state has the shape of the part that the hook gets, and each rank has its own. Its first value
  /// (SR_HOOK_STATE_...) is zero or the tensor. The state of TENSOR is called NAME/TENSOR; `name` has no `/`.
  int32_t (*add_hook_state)(void* self, uint32_t hook, const char* name, uint32_t begins, sr_error* error);
  /// Since 1.1. Lets the tensors that `glob` matches, their gradients and their optimizer state differ along the mesh
  /// axis: each rank continues from its own values. Neither a split of these tensors nor a pipeline may use the axis. A
  /// rank accumulates the gradients of its own samples, divided by the number of all samples. Whatever is computed from
  /// a varying tensor must vary, too: with clipping by the global norm, that is every tensor.
  int32_t (*vary)(void* self, const char* glob, const char* mesh_axis, sr_error* error);
} sr_plan_writer;
#define SR_PLAN_WRITER_SIZE_1_0 UINT32_C(56)

#define SR_STRATEGY_READS_SHARDING UINT32_C(1) /* without it, a job with a section [sharding] is refused */

/// The functions of a plugin of SR_KIND_STRATEGY.
typedef struct sr_strategy {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  /// INIT. Writes the plan. Pure and deterministic: every rank calls it with the same input and must get the same plan.
  /// So it must not read a clock, file, environment, address or random number. Returns SR_INVALID if it cannot split
  /// this job.
  int32_t (*make_plan)(void* self, const sr_job* job, const sr_graph* graph, const sr_plan_writer* writer,
                       sr_error* error);
  uint32_t flags;      /* since 1.1: SR_STRATEGY_... */
  uint32_t reserved_1; /* zero */
  /// Since 1.1; NULL without hooks. INIT. Writes what a hook of the plan does with a group. Pure and deterministic:
  /// equal groups get equal answers, on every rank.
  int32_t (*plan_hook)(void* self, const sr_job* job, const sr_hook_group* group, const sr_hook_writer* writer,
                       sr_error* error);
  /// Since 1.1; NULL without that hook. INIT. Does the hook's own work, between its exchanges.
  int32_t (*sync_gradients)(void* self, const sr_hook_call* call, sr_error* error);
  int32_t (*after_step)(void* self, const sr_hook_call* call, sr_error* error);
} sr_strategy;
#define SR_STRATEGY_SIZE_1_0 UINT32_C(16)

#ifdef __cplusplus
}
#endif
