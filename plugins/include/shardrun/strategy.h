#pragma once

/// A strategy says how a program is split: it reads a summary of the job and of the graph and writes a plan. The host
/// derives every collective from the plan. What a plan cannot say, a hook does: between backward and the update
/// (compression of gradients), or after a step (replicas that meet now and then).

#include <shardrun/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/// An axis of the mesh of ranks. The rank's coordinate along the last axis varies fastest.
typedef struct sr_mesh_axis {
  uint32_t struct_size;
  uint32_t size;
  const char* name;
} sr_mesh_axis;
#define SR_MESH_AXIS_SIZE_1_0 UINT32_C(16)

/// A line of the job file's section [sharding], as it stands there: what is placed, and where.
typedef struct sr_sharding {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const char* key;
  const char* value;
  const char* where; /* "job.ini:12": a message about this line begins so */
} sr_sharding;
#define SR_SHARDING_SIZE_1_1 UINT32_C(32)

/// What the job asks for.
typedef struct sr_job {
  uint32_t struct_size;
  uint32_t ranks;
  const sr_mesh_axis* mesh; /* as the job file gives it; none where it is silent */
  uint32_t mesh_count;
  uint32_t mesh_stride;
  const sr_option_value* options;
  uint32_t option_count;
  uint32_t option_stride;
  uint32_t microbatches; /* of an optimizer step; since 1.1 */
  uint32_t reserved;     /* zero */
  /* Since 1.1: in the order of the job file; none for a strategy without SR_STRATEGY_READS_SHARDING. */
  const sr_sharding* sharding;
  uint32_t sharding_count;
  uint32_t sharding_stride;
} sr_job;
#define SR_JOB_SIZE_1_0 UINT32_C(40)

/// A logical axis: the name that models give to a dimension (`batch`, `embed`, `heads`, …).
typedef struct sr_axis {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const char* name;
  int64_t size; /* global; the largest, where values of the graph differ */
} sr_axis;
#define SR_AXIS_SIZE_1_0 UINT32_C(24)

#define SR_TENSOR_PARAMETER UINT32_C(1)
#define SR_TENSOR_STATE UINT32_C(2) /* kept from step to step but not trained: a cache, a simulated field */

/// A tensor of the graph's state, of global shape. A parameter's gradient and optimizer state are no tensors
/// of their own here: they are roles of it. A strategy leaves kinds that it does not know alone.
typedef struct sr_tensor {
  uint32_t struct_size;
  uint32_t kind; /* SR_TENSOR_... */
  const char* name;
  const int64_t* shape;
  const char* const* axes; /* of each dimension its logical axis; "" where it has none */
  uint64_t bytes;
  uint32_t rank;     /* dimensions: the length of shape and axes */
  int32_t layer;     /* index into the layers; -1 outside them */
  uint32_t tied_set; /* tensors of one non-zero number are one weight; 0: not tied */
  uint32_t reserved; /* zero */
} sr_tensor;
#define SR_TENSOR_SIZE_1_0 UINT32_C(56)

/// A value between two parts of a model, named by the model so that its placement can be set.
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

/// A repeated layer of the model. FLOPs are those of one optimizer step over the whole batch.
typedef struct sr_layer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const char* name;
  uint64_t parameter_bytes;
  uint64_t forward_flops;
  uint64_t backward_input_flops;
  uint64_t backward_weight_flops;
} sr_layer;
#define SR_LAYER_SIZE_1_0 UINT32_C(48)

/// What there is to place. Names are unique within their array.
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
  const sr_layer* before; /* what is before the first layer, and behind the last, in the same terms; since 1.1 */
  const sr_layer* behind;
} sr_graph;
#define SR_GRAPH_SIZE_1_0 UINT32_C(72)

/// In place of a dimension, in sr_plan_writer.place_tensor: the tensor's elements in row-major order, or where
/// dimensions are split too, those of what these splits leave a rank. Each rank has a run of them, and runs differ by
/// at most one element. Since 1.3; older hosts refuse it.
#define SR_DIM_FLAT UINT32_MAX

/// How one dimension is split: over these mesh axes, major to minor. Splits need not divide evenly.
typedef struct sr_split {
  uint32_t struct_size;
  uint32_t dim;     /* which dimension, where `axis` is NULL; or SR_DIM_FLAT */
  const char* axis; /* the dimension by its logical axis, or NULL */
  const char* const* mesh_axes;
  uint32_t mesh_axis_count;
  uint32_t reserved; /* zero */
} sr_split;
#define SR_SPLIT_SIZE_1_0 UINT32_C(32)

/// Consecutive layers that one stage of a pipeline has. The first chunk has what is before the layers too, the last
/// what is behind them.
typedef struct sr_chunk {
  uint32_t struct_size;
  uint32_t first_layer; /* up to the next chunk's; may be the same: a chunk without layers */
  uint32_t stage;       /* the coordinate along the pipeline's mesh axis */
  uint32_t reserved;    /* zero */
} sr_chunk;
#define SR_CHUNK_SIZE_1_1 UINT32_C(16)

#define SR_ACTION_FORWARD UINT32_C(1)
#define SR_ACTION_BACKWARD UINT32_C(2)        /* both of the following */
#define SR_ACTION_BACKWARD_INPUT UINT32_C(3)  /* the gradients of activations, which the chunk before waits for */
#define SR_ACTION_BACKWARD_WEIGHT UINT32_C(4) /* the gradients of parameters */

/// What a stage computes at one time.
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
#define SR_HOOK_STATE_TENSOR UINT32_C(2) /* of after_step: the tensors as the run begins with them */

/// One of a hook's tensors, or its gradient, as far as this rank has it. Since 1.1, as all of hooks.
typedef struct sr_hook_tensor {
  uint32_t struct_size;
  uint32_t rank;
  const char* name;     /* the tensor's */
  const int64_t* shape; /* of this rank's part, which is row-major; one dimension where it is a run of elements */
  uint64_t first;       /* the number of its first element in the group */
} sr_hook_tensor;
#define SR_HOOK_TENSOR_SIZE_1_1 UINT32_C(32)

/// Tensors that a hook works on at once: they lie one after the other, as if they were one. All are split, and vary,
/// over the same mesh axes: ranks that hold the same tensors get the same groups of them.
typedef struct sr_hook_group {
  uint32_t struct_size;
  uint32_t hook;     /* SR_HOOK_... */
  uint64_t elements; /* float32, of all of them, on this rank; at least 1, the same on every member */
  uint32_t members;  /* ranks along the hook's mesh axis, at least 2 */
  uint32_t states;   /* how many of them the hook has declared */
  const sr_hook_tensor* tensors;
  uint32_t tensor_count;
  uint32_t tensor_stride;
} sr_hook_group;
#define SR_HOOK_GROUP_SIZE_1_1 UINT32_C(40)

#define SR_ELEMENT_F32 UINT32_C(1)
#define SR_ELEMENT_I32 UINT32_C(2)

/// Blocks are of one size, in the order of the members. Sums are of float32, whole numbers are moved alone.
#define SR_EXCHANGE_ALL_REDUCE UINT32_C(1)     /* the sum; receives as many elements as it sends; may be in place */
#define SR_EXCHANGE_ALL_GATHER UINT32_C(2)     /* receives a block of each member, each as large as what is sent */
#define SR_EXCHANGE_REDUCE_SCATTER UINT32_C(3) /* sends a block for each member, receives the sum of its own */
#define SR_EXCHANGE_ALL_TO_ALL UINT32_C(4)     /* sends a block to each member, and receives one of each */

/// What the members do together, of whole buffers by their numbers: 0 is the group's tensors, then come the hook's
/// states, as they were declared, then what add_buffer made.
typedef struct sr_exchange {
  uint32_t struct_size;
  uint32_t kind; /* SR_EXCHANGE_... */
  uint32_t send;
  uint32_t receive; /* another buffer, but for an all_reduce in place */
} sr_exchange;
#define SR_EXCHANGE_SIZE_1_1 UINT32_C(16)

/// Through this a strategy writes what a hook does with a group: calls and exchanges, one after the other, so that
/// memory and traffic are known before the run. The host owns it, and it is valid during plan_hook alone. Its functions
/// are as those of sr_plan_writer.
typedef struct sr_hook_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Room of the hook's own for this group, from its first call to its last: it holds anything at the beginning.
  int32_t (*add_buffer)(void* self, uint32_t element /* SR_ELEMENT_... */, uint64_t elements, sr_error* error);
  /// The hook's function is called here, with this number.
  int32_t (*add_call)(void* self, uint32_t call, sr_error* error);
  int32_t (*add_exchange)(void* self, const sr_exchange* exchange, sr_error* error);
} sr_hook_writer;
#define SR_HOOK_WRITER_SIZE_1_1 UINT32_C(40)

/// A call of a hook's function, which changes the buffers and nothing else, and keeps nothing elsewhere: one instance
/// may be called for several ranks in turn.
typedef struct sr_hook_call {
  uint32_t struct_size;
  uint32_t call; /* of add_call */
  const sr_hook_group* group;
  uint32_t member; /* this rank's number along the mesh axis */
  uint32_t buffer_count;
  void* const* buffers;     /* float32, but for those made with SR_ELEMENT_I32; by number, see sr_exchange */
  const uint64_t* elements; /* of each buffer */
  int64_t step;             /* from 0 */
  uint64_t samples;         /* of a step, over all ranks */
  uint64_t own_samples;     /* those that the gradients at this place of the mesh axis are of; may be 0 */
  const sr_job* job;        /* as make_plan had it */
} sr_hook_call;
#define SR_HOOK_CALL_SIZE_1_1 UINT32_C(72)

#define SR_ROLE_STORE UINT32_C(1)     /* where the tensor is kept between steps */
#define SR_ROLE_USE UINT32_C(2)       /* as the ops read it */
#define SR_ROLE_GRADIENT UINT32_C(3)  /* where its gradient is accumulated */
#define SR_ROLE_OPTIMIZER UINT32_C(4) /* where its optimizer state lives and its update is computed */

/// Through this a strategy writes its plan. The host owns it, and it is valid during make_plan alone.
///
/// Globs: `*` stands for any run of characters, `?` for one, and the pattern covers the whole name. What a
/// pattern matches is placed as if named; a pattern that matches nothing is refused. A later call replaces an
/// earlier one about the same thing. What is not placed is replicated, or follows from what is (tensor
/// before cut point before axis). No mesh axis may split two dimensions of one value.
///
/// Every function is INIT, returns SR_OK or an error with its reason, and copies what it is given. After an
/// error the plan is refused, whatever make_plan returns.
typedef struct sr_plan_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Axes are added major to minor and before they are mentioned. Their sizes multiply to the job's ranks,
  /// and every axis that the job's mesh gives a size above 1 is among them with that size.
  int32_t (*add_mesh_axis)(void* self, const char* name, uint32_t size, sr_error* error);
  /// Wherever the logical axis occurs it is split over these mesh axes; over none: it stays whole.
  int32_t (*place_axis)(void* self, const char* axis, const char* const* mesh_axes, uint32_t mesh_axis_count,
                        sr_error* error);
  /// One role (SR_ROLE_...) of the tensors that `glob` matches; dimensions without a split stay whole.
  int32_t (*place_tensor)(void* self, const char* glob, uint32_t role, const sr_split* splits, uint32_t split_count,
                          uint32_t split_stride, sr_error* error);
  /// The cut points that `glob` matches; dimensions without a split stay whole.
  int32_t (*place_cut_point)(void* self, const char* glob, const sr_split* splits, uint32_t split_count,
                             uint32_t split_stride, sr_error* error);
  /// Gradients that are owed a sum are reduced in buckets: as many as become complete one after the other and take up
  /// to `bytes` together, at least one. Parameters that are updated elsewhere than they are stored come back so too.
  /// Without this call each tensor is a bucket of its own.
  int32_t (*set_bucket_bytes)(void* self, uint64_t bytes, sr_error* error);
  /// Since 1.1. When the tensors that `glob` matches are brought from where they are stored to where they are used, if
  /// that is elsewhere: just before the ops that use them, together with all others of the same `unit` (any name, NULL:
  /// each by itself), while what is before these ops is computed; and freed behind them. Backward brings them again,
  /// unless `keep` is 1: then they stay from their first use in a call to the last. Without this call they are brought
  /// once a call, where they are first used, and stay. In a pipeline nothing stays.
  int32_t (*gather_at_use)(void* self, const char* glob, const char* unit, uint32_t keep, sr_error* error);
  /// Since 1.1. The chunks of a pipeline along a mesh axis, over which nothing else is split, in the order of the
  /// layers. A parameter is where it is used; one that several stages use is updated by the first of them.
  int32_t (*place_layers)(void* self, const char* mesh_axis, const sr_chunk* chunks, uint32_t chunk_count,
                          uint32_t chunk_stride, sr_error* error);
  /// Since 1.1. What a stage of the pipeline computes in one optimizer step before the update, in this order: of each
  /// of its chunks and each microbatch, forward, then backward as one or in its two parts. The host derives what is
  /// sent and received, and refuses lists that leave something out or wait for each other.
  int32_t (*set_actions)(void* self, uint32_t stage, const sr_action* actions, uint32_t action_count,
                         uint32_t action_stride, sr_error* error);
  /// Since 1.1. Hooks are of one mesh axis, along which no pipeline goes; where it has a single rank they are left out.
  /// Each is set once. The hook sync_gradients stands where the gradients of the tensors that `glob` matches would be
  /// summed over the mesh axis by an all_reduce, or stay each rank's own (`vary`): once a step, as soon as a group of
  /// them is complete and summed over all other axes. What it leaves in their place is taken as the gradients: the same
  /// on every member, unless the tensors vary over the axis.
  int32_t (*sync_gradients)(void* self, const char* glob, const char* mesh_axis, sr_error* error);
  /// Since 1.1. The hook after_step is given the tensors that `glob` matches, which are stored whole along the mesh
  /// axis, after every `every` steps and after the last one, also where a signal made it the last. Those that do not
  /// vary over the axis are the same on every member before and after it.
  int32_t (*after_step)(void* self, const char* glob, const char* mesh_axis, uint32_t every, sr_error* error);
  /// Since 1.1. The hook (SR_HOOK_...) keeps a state from step to step beside each of its tensors: of the shape of what
  /// it is given of them, each rank's own, and at first (SR_HOOK_STATE_...) zero or what the tensor is. That beside
  /// TENSOR is called NAME/TENSOR.
  int32_t (*add_hook_state)(void* self, uint32_t hook, const char* name, uint32_t begins, sr_error* error);
  /// Since 1.1. The tensors that `glob` matches, their gradients and their optimizer state are not the same along the
  /// mesh axis, over which nothing of them is split and no pipeline goes: each rank goes on from its own. It gathers
  /// gradients of its own samples alone, divided by the number of all. What follows from what varies has to vary too:
  /// where gradients are clipped by the norm of all, that is every tensor.
  int32_t (*vary)(void* self, const char* glob, const char* mesh_axis, sr_error* error);
} sr_plan_writer;
#define SR_PLAN_WRITER_SIZE_1_0 UINT32_C(56)

#define SR_STRATEGY_READS_SHARDING UINT32_C(1) /* the job may have a section [sharding]; else it is refused */

/// The functions of a plugin of SR_KIND_STRATEGY.
typedef struct sr_strategy {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  /// INIT. Pure and deterministic: every rank calls it with the same input and must get the same plan, so it
  /// reads no clock, file, environment, address or random number. SR_INVALID when the job cannot be split so.
  int32_t (*make_plan)(void* self, const sr_job* job, const sr_graph* graph, const sr_plan_writer* writer,
                       sr_error* error);
  uint32_t flags;      /* since 1.1: of SR_STRATEGY_... */
  uint32_t reserved_1; /* zero */
  /// Since 1.1; NULL without hooks. INIT. What a hook of the plan does with a group. Pure and deterministic: equal
  /// groups get equal answers, on every rank.
  int32_t (*plan_hook)(void* self, const sr_job* job, const sr_hook_group* group, const sr_hook_writer* writer,
                       sr_error* error);
  /// Since 1.1; NULL without that hook. INIT. What stands between its exchanges.
  int32_t (*sync_gradients)(void* self, const sr_hook_call* call, sr_error* error);
  int32_t (*after_step)(void* self, const sr_hook_call* call, sr_error* error);
} sr_strategy;
#define SR_STRATEGY_SIZE_1_0 UINT32_C(16)

#ifdef __cplusplus
}
#endif
