#pragma once

/// An engine is a program that each rank runs for itself: it holds this rank's part of the parameters, computes, and
/// calls collectives. The host starts the ranks, feeds data, computes the loss and its gradient with respect to the
/// predictions, runs the optimizer, and offers collectives over the job's transport. An engine can also iterate: the
/// host keeps its states, saves them, and asks for one step after another.
///
/// Everything here is since 1.7, unless it says otherwise.

#include <shardrun/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SR_ENGINE_TRAIN UINT32_C(1)
#define SR_ENGINE_INFER UINT32_C(2)
#define SR_ENGINE_ITERATE UINT32_C(3) /* since 1.9 */

/// A contiguous, row-major array. Parameters, the arguments and results of forward and backward, and tensors of
/// checkpoints are f32. Records, predictions of records, messages and collectives may have any element type.
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

/// Makes memory for a result whose shape its receiver does not know. The receiver owns the maker and the memory.
typedef struct sr_array_maker {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Makes memory for a result of the type and shape of `like`, which has no data, and stores the memory's address in
  /// `*data`. The function that got the maker calls this at most once, and fills the memory before it returns.
  int32_t (*make)(void* self, const sr_array* like, void** data, sr_error* error);
} sr_array_maker;
#define SR_ARRAY_MAKER_SIZE_1_7 UINT32_C(24)

#define SR_RANKS_SUM UINT32_C(1)
#define SR_RANKS_PRODUCT UINT32_C(2)
#define SR_RANKS_MIN UINT32_C(3)
#define SR_RANKS_MAX UINT32_C(4)

/// This rank among the others. The host owns it. An engine uses it from one thread, between its `create` and `destroy`.
///
/// All ranks call the collectives in the same order. Each collective first compares its arguments between the ranks. If
/// they do not fit together, it fails on all ranks and names two ranks that differ. Every function has [job] timeout as
/// its deadline, and returns SR_OK or an error with its reason. After an error every later call fails with the same
/// reason, unfinished messages end, and the job fails, whatever the engine returns.
///
/// An array that is cut in parts along an axis has one part for each rank, in order. Sizes of parts differ by at most
/// one index; the larger parts come first. With one rank every collective returns its array.
typedef struct sr_ranks {
  uint32_t struct_size;
  uint32_t rank;
  uint32_t world_size;
  uint32_t reserved; /* zero */
  void* self;
  int32_t (*barrier)(void* self, sr_error* error);
  /// Starts to send an array to another rank. The array must not change until `wait` returns or a call fails. Messages
  /// from one rank to another arrive in the order in which they were started. `*message` is never 0.
  int32_t (*start_send)(void* self, uint32_t to, const sr_array* array, uint64_t* message, sr_error* error);
  /// Starts to receive a message of the array's element type and shape into the array. The array belongs to the message
  /// until `wait` returns.
  int32_t (*start_receive)(void* self, uint32_t from, const sr_array* array, uint64_t* message, sr_error* error);
  /// Returns SR_OK if the message is complete, else SR_PENDING.
  int32_t (*test)(void* self, uint64_t message, sr_error* error);
  /// Waits until the message is complete. Call it once for each message; its number is invalid afterwards.
  int32_t (*wait)(void* self, uint64_t message, sr_error* error);
  /// Receives the next message from a rank: the first one that no earlier start_receive or receive takes.
  int32_t (*receive)(void* self, uint32_t from, const sr_array_maker* result, sr_error* error);
  /// Joins the arrays of all ranks along the axis. The arrays' sizes can differ along this axis only.
  int32_t (*all_gather)(void* self, const sr_array* array, uint32_t axis, const sr_array_maker* result,
                        sr_error* error);
  /// Reduces the arrays of all ranks elementwise. `reduction`: SR_RANKS_...
  int32_t (*all_reduce)(void* self, const sr_array* array, uint32_t reduction, const sr_array_maker* result,
                        sr_error* error);
  /// Computes this rank's part, along the axis, of the reduction of all ranks' arrays.
  int32_t (*reduce_scatter)(void* self, const sr_array* array, uint32_t axis, uint32_t reduction,
                            const sr_array_maker* result, sr_error* error);
  /// Sends part i of the array, along the axis, to rank i. Joins the received parts along the axis.
  int32_t (*all_to_all)(void* self, const sr_array* array, uint32_t axis, const sr_array_maker* result,
                        sr_error* error);
  /// Gives every rank the array of rank `root`. Other ranks may pass NULL.
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

/// What this rank holds of a parameter: a part, or the whole. A job that iterates has states in place of parameters.
/// All are f32. Ranks that declare the same part hold copies of it, and must compute the same gradient for it. The
/// parts of all ranks together cover the whole parameter. Any two parts are equal or do not overlap.
typedef struct sr_engine_parameter {
  uint32_t struct_size;
  uint32_t decay;        /* 1: weight decay applies */
  const char* name;      /* unique on this rank */
  const int64_t* whole;  /* the shape of the whole parameter, the same on all ranks */
  const int64_t* origin; /* the index of the part's first element in the whole; NULL: zeros */
  const int64_t* shape;  /* of the part; NULL: the whole */
  uint32_t rank;         /* dimensions, 1 to 7: the length of the three arrays above */
  uint32_t normal;       /* 1: first values are normal draws of mean 0 and deviation `initial`, keyed by the seed, the
                            name and the index in the whole; 0: each is `initial` */
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

  /// Declares what a sample is: `sample` has its element type and shape (at most 6 dimensions) and no data. An extent
  /// of -1 stands for any size. Called at most once, with the same arguments on all ranks. Without this call, samples
  /// are f32 [features], or [d] with any d if the number of features is not known. Samples for training are f32, with
  /// as many values as `features` says.
  int32_t (*set_sample)(void* self, const sr_array* sample, sr_error* error);
} sr_parameter_writer;
#define SR_PARAMETER_WRITER_SIZE_1_7 UINT32_C(24)

/// A stream of records and one of results. The host owns it. Valid only during `infer`. All ranks call its functions in
/// the same order.
typedef struct sr_records {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Waits for the next record and gets the input that forward would get for it on this rank: [samples, ...], with the
  /// type and shape of samples. `*found` becomes 1, or 0 at the end of the stream.
  int32_t (*next)(void* self, const sr_array_maker* record, uint32_t* found, sr_error* error);
  /// Writes the predictions for the earliest record that has none yet, in the shape that this rank's forward returns.
  /// If the engine only infers, they are [samples, ...] of any type and shape. Waits until the stream has taken them.
  int32_t (*write)(void* self, const sr_array* predictions, sr_error* error);
} sr_records;
#define SR_RECORDS_SIZE_1_7 UINT32_C(32)

#define SR_ENGINE_WHOLE_BATCH UINT32_C(1) /* forward gets the whole batch on every rank, not the rank's part of it */
#define SR_ENGINE_MESSAGES UINT32_C(2)    /* it calls start_send, start_receive or receive: the host connects ranks */

/// The functions of a plugin of SR_KIND_ENGINE. All are INIT. They return SR_INVALID if the user has to change the job.
/// Since 1.9, an engine may leave out (NULL)
///  - load_checkpoint, forward, backward and infer, all four, if it has `step`: it then only iterates;
///  - forward and backward: it is then not trained, and its records and predictions may have any type and shape.
typedef struct sr_engine {
  uint32_t struct_size;
  uint32_t flags;   /* SR_ENGINE_...; unknown ones are skipped */
  const char* help; /* one line: what it is */
  /// Declares the parameters of the rank that `job` names. Pure: the host also asks for other ranks' parameters.
  int32_t (*declare)(void* self, const sr_engine_job* job, const sr_parameter_writer* writer, sr_error* error);
  /// Makes this rank's engine. `parameters`: those that this rank declared, in order. The host owns their memory, sets
  /// their first values before the next call, and updates them in place. They and `ranks` stay valid until destroy.
  int32_t (*create)(void* self, const sr_engine_job* job, const sr_named_array* parameters, uint32_t count,
                    uint32_t stride, const sr_ranks* ranks, void** engine, sr_error* error);
  void (*destroy)(void* self, void* engine);
  /// Receives all tensors of [job] checkpoint, each as a whole, in f32. They are valid during the call.
  int32_t (*load_checkpoint)(void* self, void* engine, const sr_named_array* tensors, uint32_t count, uint32_t stride,
                             sr_error* error);
  /// Computes predictions. `input`: f32 [samples, features], or [samples, ...] as set_sample declared. `output`: f32
  /// [samples, outputs]. With SR_ENGINE_WHOLE_BATCH, a rank that has no predictions returns an array without elements.
  int32_t (*forward)(void* self, void* engine, const sr_array* input, const sr_array_maker* output, sr_error* error);
  /// Called after forward. `gradient`: the gradient of the whole batch's loss with respect to what forward returned on
  /// this rank. Fills `gradients`, one for each parameter, in order, with the gradients of that loss.
  int32_t (*backward)(void* self, void* engine, const sr_array* gradient, const sr_named_array* gradients,
                      uint32_t count, uint32_t stride, sr_error* error);
  /// Writes predictions for all records, in order.
  int32_t (*infer)(void* self, void* engine, const sr_records* records, sr_error* error);

  /* Since 1.9 */

  /// Sets the states to the values with which a run begins, instead of the declared first values. Not called if a run
  /// continues from a checkpoint. May be NULL.
  int32_t (*start)(void* self, void* engine, sr_error* error);
  /// Computes step `step`, counted from 0: replaces the states by their next values, in place. The step may depend only
  /// on the states, not on anything else that an earlier step left, so that a run can continue from saved states. NULL:
  /// the engine does not iterate.
  int32_t (*step)(void* self, void* engine, int64_t step, sr_error* error);
} sr_engine;
#define SR_ENGINE_SIZE_1_7 UINT32_C(72)

#ifdef __cplusplus
}
#endif
