#pragma once

/// A model is what is computed: states, and functions over them. It is written as if there were one giant device. It
/// names no rank, calls no collective and runs no kernel: it builds a graph through tables that the host hands over.
/// The host adds microbatches, the gradients of parameters, the optimizer and evaluation; a strategy splits the result.
///
/// Everything here is since 1.7.

#include <shardrun/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/// What a job trains on. A sample is one row of the functions' inputs, whose first axis is `batch`.
#define SR_DATA_TOKENS UINT32_C(1) /* inputs, targets: i32 [batch, seq]; options `context`, the size of seq, and `vocab` */
#define SR_DATA_ARRAYS UINT32_C(2) /* inputs: f32 [batch, features], targets: f32 [batch, outputs] */
#define SR_DATA_LABELS UINT32_C(4) /* inputs: f32 [batch, features], targets: i32 [batch] */

/// The job's request.
typedef struct sr_model_job {
  uint32_t struct_size;
  uint32_t data; /* SR_DATA_...; 0: the job has no data, because it is not trained, or only planned */
  const sr_option_value* options;
  uint32_t option_count;
  uint32_t option_stride;
  int64_t vocab;    /* tokens and labels: the number of distinct values; 0: not known */
  int64_t features; /* arrays and labels: values in a row of `inputs`; 0: not known */
  int64_t outputs;  /* arrays: values in a row of `targets`; 0: not known */
} sr_model_job;
#define SR_MODEL_JOB_SIZE_1_7 UINT32_C(48)

/// The shape of a tensor on the one giant device. `axes` names each dimension; strategies place by these names, and an
/// op's operands share them where they share a dimension.
typedef struct sr_tensor_type {
  uint32_t struct_size;
  uint32_t element; /* SR_ELEMENT_... */
  const int64_t* shape;
  const char* const* axes;
  uint32_t rank;     /* dimensions: the length of shape and axes; 0 for a scalar */
  uint32_t reserved; /* zero */
} sr_tensor_type;
#define SR_TENSOR_TYPE_SIZE_1_7 UINT32_C(32)

#define SR_INITIAL_CONSTANT UINT32_C(0) /* every element is `initial_value` */
#define SR_INITIAL_NORMAL UINT32_C(1)   /* draws of mean 0 and this deviation, keyed by the seed and the state's name */
#define SR_INITIAL_BUMP UINT32_C(2)     /* a Gaussian bump in the middle, this share of each dimension wide */
#define SR_INITIAL_UNIFORM UINT32_C(3)  /* draws from 0 to this, without this, keyed as normal ones */
#define SR_INITIAL_CHANCE UINT32_C(4)   /* 1 with this probability, else 0 */
#define SR_INITIAL_COUNTING UINT32_C(5) /* 1, 2, 3, ... times this, in row-major order */

/// A tensor that is kept between calls of functions.
typedef struct sr_state {
  uint32_t struct_size;
  uint32_t kind;    /* SR_TENSOR_...; a parameter is trained: gradient and optimizer states belong to it */
  const char* name; /* unique; `layer.0/mlp/up/weights`: what is before the last `/` names ops that read it */
  const sr_tensor_type* type;
  uint32_t initial; /* SR_INITIAL_... */
  uint32_t decay;   /* 1: weight decay applies */
  double initial_value;
  int32_t layer;     /* the repeated layer that it belongs to; -1: none */
  uint32_t reserved; /* zero */
} sr_state;
#define SR_STATE_SIZE_1_7 UINT32_C(48)

/// A model writes its states through this. The host owns it. It is valid only during `declare`. Every function is INIT,
/// returns SR_OK or an error with its reason, and copies its arguments. After an error the graph is refused, whatever
/// `declare` returns.
typedef struct sr_state_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  int32_t (*add_state)(void* self, const sr_state* state, sr_error* error);
  /// The number of repeated layers, which a pipeline divides. Without this call there are none.
  int32_t (*set_layers)(void* self, uint32_t layers, sr_error* error);
} sr_state_writer;
#define SR_STATE_WRITER_SIZE_1_7 UINT32_C(32)

#define SR_FUNCTION_REPEATED UINT32_C(1)  /* for each microbatch of a step */
#define SR_FUNCTION_ONCE UINT32_C(2)      /* once a step */
#define SR_FUNCTION_ON_DEMAND UINT32_C(3) /* when something asks for it by its name */

/// A function of the model. The host knows these names:
///  - `loss`, repeated: calls set_losses. Its inputs are those of the data (SR_DATA_...). The host makes forward and
///    backward of each microbatch from it, and evaluation. Without it the model cannot be trained.
///  - `iterate`, once: writes the next values of states, and outputs. Without it the model cannot be iterated.
///  - `predict`, on demand: from the input `inputs`, i32 [batch 1, seq], the output `logits` [1, vocab] at a position
///    that the op take_position knows. Without it nothing can be sampled.
typedef struct sr_function {
  uint32_t struct_size;
  uint32_t role; /* SR_FUNCTION_... */
  const char* name;
} sr_function;
#define SR_FUNCTION_SIZE_1_7 UINT32_C(16)

/// Which function is to be written. One function is written for each number of rows that occurs.
typedef struct sr_function_request {
  uint32_t struct_size;
  uint32_t function; /* its index in sr_model.functions */
  int64_t rows;      /* samples of a call; 0 for a function without a batch */
  uint32_t training; /* 1: random layers act */
  uint32_t reserved; /* zero */
} sr_function_request;
#define SR_FUNCTION_REQUEST_SIZE_1_7 UINT32_C(24)

#define SR_ATTRIBUTE_INTEGER UINT32_C(1)
#define SR_ATTRIBUTE_NUMBER UINT32_C(2)
#define SR_ATTRIBUTE_TEXT UINT32_C(3)
#define SR_ATTRIBUTE_NUMBERS UINT32_C(4)
#define SR_ATTRIBUTE_INTEGERS UINT32_C(5)

/// A constant of an op. `type` decides which fields are used.
typedef struct sr_attribute {
  uint32_t struct_size;
  uint32_t type; /* SR_ATTRIBUTE_... */
  const char* name;
  int64_t integer;
  double number;
  const char* text;
  const double* numbers;
  const int64_t* integers;
  uint32_t count;    /* the length of numbers or integers */
  uint32_t reserved; /* zero */
} sr_attribute;
#define SR_ATTRIBUTE_SIZE_1_7 UINT32_C(64)

/// A use of an op.
typedef struct sr_call {
  uint32_t struct_size;
  uint32_t operand_count;
  const char* op;
  const uint32_t* operands; /* values */
  const sr_attribute* attributes;
  uint32_t attribute_count;
  uint32_t attribute_stride;
  const char* name; /* of the node, after the scope; NULL: the unit of the first parameter that it reads, or the op */
} sr_call;
#define SR_CALL_SIZE_1_7 UINT32_C(48)

/// A model writes one function through this. The host owns it. It is valid only during `write_function`.
///
/// A function is pure: it reads states as of its start, and its writes happen at its end. Values are numbers, never 0,
/// that mean something in this function only.
///
/// Every function of the table is INIT, returns SR_OK or an error with its reason, and copies its arguments. After an
/// error the graph is refused, whatever write_function returns.
typedef struct sr_function_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// A tensor that the host fills before a call.
  int32_t (*input)(void* self, const char* name, const sr_tensor_type* type, uint32_t* value, sr_error* error);
  /// The value of a state at the start of the function.
  int32_t (*state)(void* self, const char* name, uint32_t* value, sr_error* error);
  /// Adds a node. Shapes and axes of its results follow from the op's rule. `count` gets the number of results; as many
  /// of them as there is `room` for are written to `results`.
  int32_t (*call)(void* self, const sr_call* call, uint32_t* results, uint32_t room, uint32_t* count, sr_error* error);
  /// The type of a value. The host owns it; it is valid as long as this table.
  int32_t (*type_of)(void* self, uint32_t value, const sr_tensor_type** type, sr_error* error);
  /// Adds the nodes of the gradient of `scalar` with respect to each of `of`: states, inputs or results of nodes. Each
  /// gradient has the type of its value. It is zero where nothing flows.
  int32_t (*gradient)(void* self, uint32_t scalar, const uint32_t* of, uint32_t count, uint32_t* gradients,
                      sr_error* error);
  /// Names a value, and the node that made it, as one whose placement a strategy may decide.
  int32_t (*cut_point)(void* self, const char* name, uint32_t value, sr_error* error);
  /// The layer of the nodes that follow: -1 before the first, the number of layers behind the last. It begins as -1.
  int32_t (*set_layer)(void* self, int32_t layer, sr_error* error);
  /// Names of nodes and cut points that follow begin with `scope/`; NULL: with nothing.
  int32_t (*set_scope)(void* self, const char* scope, sr_error* error);
  /// The state's value after the function. Each state is written at most once.
  int32_t (*write)(void* self, const char* state, uint32_t value, sr_error* error);
  /// A tensor that the host reads after a call. A run saves those of `iterate`, f32, as outputs/NAME.npy at its end, and
  /// whenever it saves the fields. The name is not a state's.
  int32_t (*output)(void* self, const char* name, uint32_t value, sr_error* error);
  /// Of the function `loss`: the losses of its samples, [batch] or [batch, ...], the same number for each sample. The
  /// loss of a step is their mean over the whole batch.
  int32_t (*set_losses)(void* self, uint32_t losses, sr_error* error);
} sr_function_writer;
#define SR_FUNCTION_WRITER_SIZE_1_7 UINT32_C(104)

/// The functions of a plugin of SR_KIND_MODEL. Both are pure and deterministic: every rank calls them with the same
/// input and must get the same graph. So they read no clock, file, environment, address or random number. SR_INVALID
/// where the job has to change; sr_error.setting then says which setting.
typedef struct sr_model {
  uint32_t struct_size;
  uint32_t data;    /* bits: the kinds of data (SR_DATA_...) that `loss` can be trained on; none: it takes no data */
  const char* help; /* one line: what it is */
  const sr_function* functions;
  uint32_t function_count;
  uint32_t function_stride;
  /// INIT. Writes the states of the model for these options.
  int32_t (*declare)(void* self, const sr_model_job* job, const sr_state_writer* writer, sr_error* error);
  /// INIT. Writes one function.
  int32_t (*write_function)(void* self, const sr_model_job* job, const sr_function_request* request,
                            const sr_function_writer* writer, sr_error* error);
} sr_model;
#define SR_MODEL_SIZE_1_7 UINT32_C(48)

#ifdef __cplusplus
}
#endif
