#pragma once

/// An engine is a program that each rank runs for itself: it holds this rank's part of the parameters, computes, and
/// calls collectives. The host starts the ranks, feeds data, computes the loss and its gradient with respect to the
/// predictions, runs the optimizer, and offers collectives over the job's transport. Or it iterates: the host keeps its
/// states, saves them, and asks for one step after another.
///
/// Everything here is since 1.7, except what says otherwise.

#include <shardrun/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SR_ENGINE_TRAIN UINT32_C(1)
#define SR_ENGINE_INFER UINT32_C(2)
#define SR_ENGINE_ITERATE UINT32_C(3) /* since 1.9 */

/// A contiguous, row-major array. Parameters, what forward and backward take and give, and tensors of checkpoints are
/// f32. Records, predictions of records, messages and collectives may have any element type.
typedef struct sr_array {
  uint32_t struct_size;
  uint32_t element;     /* SR_ELEMENT_... */
  const int64_t* shape; /* may be NULL where rank is 0 */
  void* data;           /* may be NULL where an extent is 0 */
  uint32_t rank;        /* dimensions, at most 7; 0 for a scalar */
  uint32_t reserved;    /* zero */
} sr_array;
#define SR_ARRAY_SIZE_1_7 UINT32_C(32)

typedef struct sr_named_array {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const char* name;
  const sr_array* array;
} sr_named_array;
#define SR_NAMED_ARRAY_SIZE_1_7 UINT32_C(24)

/// Makes room for a result whose shape the caller does not know. The side that receives the result owns it and the
/// memory.
typedef struct sr_array_maker {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// `like` has no data. `*data` gets the address of its elements. The other side fills them before it returns. Called
  /// at most once.
  int32_t (*make)(void* self, const sr_array* like, void** data, sr_error* error);
} sr_array_maker;
#define SR_ARRAY_MAKER_SIZE_1_7 UINT32_C(24)

#define SR_RANKS_SUM UINT32_C(1)
#define SR_RANKS_PRODUCT UINT32_C(2)
#define SR_RANKS_MIN UINT32_C(3)
#define SR_RANKS_MAX UINT32_C(4)

/// This rank among the others. The host owns it. An engine uses it from one thread, between its `create` and `destroy`.
///
/// All ranks call the collectives in one order. Each collective compares its arguments between the ranks first: where
/// they do not fit together, it fails on all ranks and names two that differ. Every function has [job] timeout as its
/// deadline, and returns SR_OK or an error with its reason. After an error every later call fails with it, messages
/// under way end, and the job fails, whatever the engine returns.
///
/// An array that is cut in parts along an axis has one part for each rank, in order. Parts differ by at most one index;
/// the larger ones come first. With one rank every collective returns its array.
typedef struct sr_ranks {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t world_size;
  uint32_t reserved; /* zero */
  void* self;
  int32_t (*barrier)(void* self, sr_error* error);
  /// Starts to send to another rank. The array stays unchanged until `wait`, or an error. Messages from one rank to
  /// another arrive in the order in which they were started. `*message` is never 0.
  int32_t (*start_send)(void* self, uint32_t to, const sr_array* array, uint64_t* message, sr_error* error);
  /// Receives a message of this element type and shape into the array, which belongs to the message until `wait`.
  int32_t (*start_receive)(void* self, uint32_t from, const sr_array* array, uint64_t* message, sr_error* error);
  /// SR_OK when the message is complete, SR_PENDING when not.
  int32_t (*test)(void* self, uint64_t message, sr_error* error);
  /// Once for each message. Its number means nothing afterwards.
  int32_t (*wait)(void* self, uint64_t message, sr_error* error);
  /// The next message from a rank, after those of earlier calls of start_receive.
  int32_t (*receive)(void* self, uint32_t from, const sr_array_maker* result, sr_error* error);
  /// The arrays of all ranks, joined along the axis. Only their extents along the axis may differ.
  int32_t (*all_gather)(void* self, const sr_array* array, uint32_t axis, const sr_array_maker* result,
                        sr_error* error);
  /// The reduction of the arrays of all ranks, elementwise. `reduction`: SR_RANKS_...
  int32_t (*all_reduce)(void* self, const sr_array* array, uint32_t reduction, const sr_array_maker* result,
                        sr_error* error);
  /// This rank's part of that reduction along the axis.
  int32_t (*reduce_scatter)(void* self, const sr_array* array, uint32_t axis, uint32_t reduction,
                            const sr_array_maker* result, sr_error* error);
  /// Part i of the array, along the axis, to rank i. The result is the received parts, joined along the axis.
  int32_t (*all_to_all)(void* self, const sr_array* array, uint32_t axis, const sr_array_maker* result,
                        sr_error* error);
  /// The array of rank `root`. Other ranks may pass NULL.
  int32_t (*broadcast)(void* self, const sr_array* array, uint32_t root, const sr_array_maker* result, sr_error* error);
} sr_ranks;
#define SR_RANKS_SIZE_1_7 UINT32_C(112)

/// The job, as one rank sees it.
typedef struct sr_engine_job {
  uint32_t struct_size;
  uint32_t task; /* SR_ENGINE_... */
  uint32_t rank;
  uint32_t world_size;
  const sr_option_value* options;
  uint32_t option_count;
  uint32_t option_stride;
  int64_t features; /* values in a sample; 0: not known */
  int64_t outputs;  /* values in a target, or classes: the values that forward returns for a sample; 0: not known */
} sr_engine_job;
#define SR_ENGINE_JOB_SIZE_1_7 UINT32_C(48)

/// A parameter, or a part of one, that this rank holds; a state where the task is to iterate. All are f32. Ranks that
/// declare the same part hold copies of it: their gradients have to be the same. The parts of all ranks together are
/// the whole parameter; they are equal or do not overlap.
typedef struct sr_engine_parameter {
  uint32_t struct_size;
  uint32_t decay;        /* 1: weight decay applies */
  const char* name;      /* unique on this rank */
  const int64_t* whole;  /* the shape of the whole parameter, the same on all ranks */
  const int64_t* origin; /* the index of the part's first element in the whole; NULL: zeros */
  const int64_t* shape;  /* of the part; NULL: the whole */
  uint32_t rank;         /* dimensions: the length of the three */
  uint32_t normal;       /* 1: first values are draws of mean 0 and this deviation, keyed by the seed, the name and the
                            index in the whole; 0: each is `initial` */
  double initial;
} sr_engine_parameter;
#define SR_ENGINE_PARAMETER_SIZE_1_7 UINT32_C(56)

/// An engine declares its parameters through this. The host owns it. Valid only during `declare`.
typedef struct sr_parameter_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  int32_t (*add_parameter)(void* self, const sr_engine_parameter* parameter, sr_error* error);

  /* Since 1.9 */

  /// Says what a sample is: `sample` has its element type and shape, at most 6 dimensions, and no data. An extent of -1
  /// stands for any. Called at most once, and alike on all ranks. Without it samples are f32 [features], or [d] with
  /// any d where that is not known. Samples of a training are f32, with as many values as `features` says.
  int32_t (*set_sample)(void* self, const sr_array* sample, sr_error* error);
} sr_parameter_writer;
#define SR_PARAMETER_WRITER_SIZE_1_7 UINT32_C(24)

/// A stream of records and one of results. The host owns it. Valid only during `infer`. All ranks call its functions in
/// one order.
typedef struct sr_records {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// The next record, [samples, ...] of the type and shape of a sample, as forward gets it on this rank. `*found`
  /// becomes 1, or 0 at the end. It waits for the record.
  int32_t (*next)(void* self, const sr_array_maker* record, uint32_t* found, sr_error* error);
  /// The predictions for the earliest record that has none yet, as forward returns them on this rank; of an engine that
  /// infers alone [samples, ...] of any type and shape. It waits until the stream has taken them.
  int32_t (*write)(void* self, const sr_array* predictions, sr_error* error);
} sr_records;
#define SR_RECORDS_SIZE_1_7 UINT32_C(32)

#define SR_ENGINE_WHOLE_BATCH UINT32_C(1) /* forward gets the whole batch on every rank, not the rank's part of it */
#define SR_ENGINE_MESSAGES UINT32_C(2)    /* it calls start_send, start_receive or receive, so ranks are connected */

/// The functions of a plugin of SR_KIND_ENGINE. All are INIT. SR_INVALID where the job has to change. Since 1.9, an
/// engine that has `step` may leave load_checkpoint, forward, backward and infer out, all four: it iterates alone. One
/// may leave forward and backward out: it is not trained, and its records and predictions may have any type and shape.
typedef struct sr_engine {
  uint32_t struct_size;
  uint32_t flags;   /* SR_ENGINE_...; unknown ones are skipped */
  const char* help; /* one line: what it is */
  /// Pure. The parameters of the rank that `job` names. The host also asks for other ranks' parameters.
  int32_t (*declare)(void* self, const sr_engine_job* job, const sr_parameter_writer* writer, sr_error* error);
  /// Makes this rank's engine. `parameters`: those that it declared, in order. The host owns their memory, sets their
  /// first values before the next call, and updates them in place. `ranks` and the memory stay until destroy.
  int32_t (*create)(void* self, const sr_engine_job* job, const sr_named_array* parameters, uint32_t count,
                    uint32_t stride, const sr_ranks* ranks, void** engine, sr_error* error);
  void (*destroy)(void* self, void* engine);
  /// Takes the tensors of [job] checkpoint, all of them and each whole, f32, valid during the call.
  int32_t (*load_checkpoint)(void* self, void* engine, const sr_named_array* tensors, uint32_t count, uint32_t stride,
                             sr_error* error);
  /// Predictions for the samples of `input`, f32 [samples, features], or [samples, ...] as set_sample said: f32
  /// [samples, outputs]. With
  /// SR_ENGINE_WHOLE_BATCH a rank that has none returns an array without elements.
  int32_t (*forward)(void* self, void* engine, const sr_array* input, const sr_array_maker* output, sr_error* error);
  /// After forward. `gradient`: of the loss of the whole batch with respect to what forward returned on this rank.
  /// Fills `gradients`, one for each parameter, in order, with the gradients of that loss.
  int32_t (*backward)(void* self, void* engine, const sr_array* gradient, const sr_named_array* gradients,
                      uint32_t count, uint32_t stride, sr_error* error);
  /// Writes predictions for all records, in order.
  int32_t (*infer)(void* self, void* engine, const sr_records* records, sr_error* error);

  /* Since 1.9 */

  /// Sets the states to what a run begins with, in place of the first values that were declared. Not called where a run
  /// goes on from a checkpoint. May be NULL.
  int32_t (*start)(void* self, void* engine, sr_error* error);
  /// Computes step `step`, counted from 0: the next values of the states, in place. It depends on nothing else that an
  /// earlier step left, so that a run can go on from saved states. NULL: the engine does not iterate.
  int32_t (*step)(void* self, void* engine, int64_t step, sr_error* error);
} sr_engine;
#define SR_ENGINE_SIZE_1_7 UINT32_C(72)

#ifdef __cplusplus
}
#endif
