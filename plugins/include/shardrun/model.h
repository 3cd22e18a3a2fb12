#pragma once

/// A model says what is computed: states, and functions over them. It is written as if there were one giant device. It
/// names no rank, calls no collective and runs no kernel: it builds a graph through tables that the host passes to it.
/// The host adds microbatches, the gradients of parameters, the optimizer and evaluation; a strategy splits the result.
///
/// Everything here is since 1.7. INIT and GROUP say who may call a function, and when: see plugin.h.

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
  /* Since 1.9, for the function `decode` */
  int64_t cache_pages;    /* pages that all sequences share; 0: `decode` is not called, and there are no caches */
  int64_t page_tokens;    /* tokens on a page */
  int64_t sequence_pages; /* the most pages that a sequence has */
} sr_model_job;
#define SR_MODEL_JOB_SIZE_1_7 UINT32_C(48)

/// The shape of a tensor on the one giant device. `axes` names each dimension. Strategies place tensors by these names.
/// The operands of an op use the same name for a dimension that they share. An axis "heads/3" has one index for three
/// indices of "heads". If "heads" is split, a rank has the indices of "heads/3" that its part of "heads" needs, and
/// several ranks can have the same one.
typedef struct sr_tensor_type {
  uint32_t struct_size;
  uint32_t element; /* SR_ELEMENT_... */
  const int64_t* shape;
  const char* const* axes;
  uint32_t rank;     /* dimensions: the length of shape and axes; 0 for a scalar */
  uint32_t reserved; /* zero */
} sr_tensor_type;
#define SR_TENSOR_TYPE_SIZE_1_7 UINT32_C(32)

/// The first elements of a state. v is its `initial_value`.
#define SR_INITIAL_CONSTANT UINT32_C(0) /* v */
#define SR_INITIAL_NORMAL UINT32_C(1)   /* normal draws: mean 0, deviation v, keyed by the seed and the state's name */
#define SR_INITIAL_BUMP UINT32_C(2)     /* a Gaussian bump in the middle; its width is v times a dimension's size */
#define SR_INITIAL_UNIFORM UINT32_C(3)  /* draws from [0, v), keyed as normal ones */
#define SR_INITIAL_CHANCE UINT32_C(4)   /* 1 with probability v, else 0; keyed as normal ones */
#define SR_INITIAL_COUNTING UINT32_C(5) /* v, 2v, 3v, ... in row-major order */

/// A tensor that is kept between calls of functions.
typedef struct sr_state {
  uint32_t struct_size;
  uint32_t kind;    /* SR_TENSOR_...; a parameter is trained: gradient and optimizer states belong to it. A cache has
                       the shape [cache_pages, heads, page_tokens, any] and begins with zeros */
  const char* name; /* unique: letters, digits and `. _ - /`, as names of axes, inputs, outputs, cut points and scopes.
                       The part before the last `/` names ops that read it: `layer.0/mlp/up/weights` */
  const sr_tensor_type* type;
  uint32_t initial; /* SR_INITIAL_... */
  uint32_t decay;   /* 1: weight decay applies */
  double initial_value;
  int32_t layer;     /* the repeated layer that it belongs to; -1: none */
  uint32_t reserved; /* zero */
} sr_state;
#define SR_STATE_SIZE_1_7 UINT32_C(48)

/// A model declares its states through this. The host owns it. It is valid only during `declare`. Every function is
/// INIT, returns SR_OK or an error with its reason, and copies its arguments. After an error the graph is refused,
/// whatever `declare` returns.
typedef struct sr_state_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  int32_t (*add_state)(void* self, const sr_state* state, sr_error* error);
  /// Sets the number of repeated layers, which a pipeline divides. Without this call there are none.
  int32_t (*set_layers)(void* self, uint32_t layers, sr_error* error);
} sr_state_writer;
#define SR_STATE_WRITER_SIZE_1_7 UINT32_C(32)

#define SR_FUNCTION_REPEATED UINT32_C(1)  /* for each microbatch of a step */
#define SR_FUNCTION_ONCE UINT32_C(2)      /* once a step */
#define SR_FUNCTION_ON_DEMAND UINT32_C(3) /* when something asks for it by its name */

/// A function of the model. The host knows these names:
///  - `loss`, repeated: calls set_losses. Its inputs are those of the data (SR_DATA_...). From it the host makes
///    forward and backward of each microbatch, and evaluation. A model without it cannot be trained.
///  - `iterate`, once: writes the next values of states, and outputs. In a job with data it has the inputs of `loss`.
///  - `predict`, on demand: from the input `inputs`, i32 [batch 1, seq], computes the output `logits` [1, vocab] at the
///    position that the op take_position reads. A model without it cannot be sampled.
///  - `forward`, on demand, since 1.9: applies the model to a batch. From the data's input `inputs` alone it computes
///    the output `outputs`: f32 [batch, ...]. `shardrun predict` chooses the numbers of rows for which it is written. A
///    model without it cannot predict arrays.
///  - `decode`, on demand, since 1.9: `predict` with keys and values kept in caches. It adds `length` tokens to each of
///    `rows` sequences: `inputs`, i32 [batch, seq], at the positions `positions`, i32 [batch, seq], where -1 stands for
///    no token. The pages of a sequence are a row of `pages`, i32 [batch, sequence_pages]: see the op write_pages. It
///    computes the output `logits` [batch, vocab] at the index of seq that the op take_position reads. A model without
///    it is sampled by `predict`, which computes all positions again for each token.
typedef struct sr_function {
  uint32_t struct_size;
  uint32_t role; /* SR_FUNCTION_... */
  const char* name;
} sr_function;
#define SR_FUNCTION_SIZE_1_7 UINT32_C(16)

/// Which function is to be written. A function is written once for each number of rows that occurs.
typedef struct sr_function_request {
  uint32_t struct_size;
  uint32_t function; /* its index in sr_model.functions */
  int64_t rows;      /* samples in a call, such as a microbatch's; 0 for a function without a batch */
  uint32_t training; /* 1: random layers act */
  uint32_t reserved; /* zero */
  int64_t length;    /* since 1.9; `decode`: tokens that a call adds to a sequence */
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

/// A call of an op.
typedef struct sr_call {
  uint32_t struct_size;
  uint32_t operand_count;
  const char* op;
  const uint32_t* operands; /* values */
  const sr_attribute* attributes;
  uint32_t attribute_count;
  uint32_t attribute_stride;
  const char* name; /* of the node, after the scope; NULL: from the first parameter that it reads, or the op's */
} sr_call;
#define SR_CALL_SIZE_1_7 UINT32_C(48)

/// A model writes one function through this. The host owns it. It is valid only during `write_function`.
///
/// A function is pure: it reads states as of its start, and its writes happen at its end. Values are numbers, never 0,
/// and valid in this function only.
///
/// Every function of the table is INIT, returns SR_OK or an error with its reason, and copies its arguments. After an
/// error the graph is refused, whatever write_function returns.
typedef struct sr_function_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Adds an input: a tensor that the host fills before each call.
  int32_t (*input)(void* self, const char* name, const sr_tensor_type* type, uint32_t* value, sr_error* error);
  /// Gets the value of a state at the start of the function.
  int32_t (*state)(void* self, const char* name, uint32_t* value, sr_error* error);
  /// Adds a node that calls an op. Shapes and axes of its results follow from the op's rule. `count` gets the number of
  /// results; at most `room` of them are written to `results`.
  int32_t (*call)(void* self, const sr_call* call, uint32_t* results, uint32_t room, uint32_t* count, sr_error* error);
  /// Gets the type of a value. The host owns it; it is valid as long as this table.
  int32_t (*type_of)(void* self, uint32_t value, const sr_tensor_type** type, sr_error* error);
  /// Adds the nodes of the gradient of `scalar` with respect to each of `of`: states, inputs or results of nodes. Each
  /// gradient has the type of its value. It is zero if the scalar does not depend on the value.
  int32_t (*gradient)(void* self, uint32_t scalar, const uint32_t* of, uint32_t count, uint32_t* gradients,
                      sr_error* error);
  /// Names a value, and the node that made it, as one whose placement a strategy may decide. Names must be unique.
  int32_t (*cut_point)(void* self, const char* name, uint32_t value, sr_error* error);
  /// Sets the layer of the following nodes: -1 before the first layer, the number of layers after the last. At first it
  /// is -1. A layer reads only values of itself and of earlier layers.
  int32_t (*set_layer)(void* self, int32_t layer, sr_error* error);
  /// Puts `scope/` before the names of the following nodes and cut points; NULL: nothing.
  int32_t (*set_scope)(void* self, const char* scope, sr_error* error);
  /// Sets the state's value after the function. Each state is written at most once, and not by a repeated function.
  int32_t (*write)(void* self, const char* state, uint32_t value, sr_error* error);
  /// Names an f32 value that the host reads after a call. A run saves the outputs of `iterate` as outputs/NAME.npy at
  /// its end, and whenever it saves the fields. NAME has no `/`, does not begin with `.`, and is no state's name.
  int32_t (*output)(void* self, const char* name, uint32_t value, sr_error* error);
  /// For the function `loss`: sets the losses of its samples, [batch] or [batch, ...], the same number for each sample.
  /// The loss of a step is their mean over the whole batch.
  int32_t (*set_losses)(void* self, uint32_t losses, sr_error* error);
  /// Since 1.8. For the function `loss`, in addition to set_losses: sets counts, f32 of any shape. The loss of a step
  /// is then the sum of the whole batch's losses divided by the sum of all its counts, or 0 if that sum is 0. Counts
  /// get no gradient. Called for all numbers of rows, or for none.
  int32_t (*set_loss_counts)(void* self, uint32_t counts, sr_error* error);
} sr_function_writer;
#define SR_FUNCTION_WRITER_SIZE_1_7 UINT32_C(104)

/// A tensor, or one shard of one, as a kernel sees it. Its elements are in row-major order without gaps.
typedef struct sr_tensor_view {
  uint32_t struct_size;
  uint32_t element; /* SR_ELEMENT_... */
  void* data;       /* a kernel writes to results only */
  const int64_t* shape;
  const int64_t* strides; /* elements between neighbours in each dimension */
  const int64_t* origin;  /* where in the whole tensor its first element is */
  const int64_t* whole;   /* the whole tensor's shape */
  uint32_t rank;          /* dimensions: the length of these four */
  uint32_t reserved;      /* zero */
} sr_tensor_view;
#define SR_TENSOR_VIEW_SIZE_1_7 UINT32_C(56)

/// One execution of an op's kernel. Operands, results and scratch do not overlap.
typedef struct sr_kernel_call {
  uint32_t struct_size;
  uint32_t operand_count;
  const sr_tensor_view* operands;
  const sr_tensor_view* results;
  const sr_attribute* attributes; /* in the order in which the op declares them */
  uint32_t operand_stride;
  uint32_t result_count;
  uint32_t result_stride;
  uint32_t attribute_count;
  uint32_t attribute_stride;
  uint32_t reserved; /* zero */
  void* scratch;     /* its content is undefined */
  uint64_t scratch_bytes;
  void* self;
  /// Calls body(argument, begin, end) for ranges that together cover [0, count), on the threads of this rank, and
  /// returns when all calls have ended. The size of each range, except the last, is a multiple of `grain`. Ranges can
  /// depend on the number of threads; results must not. NULL if `data` of the tensors is NULL.
  void (*split)(void* self, int64_t count, int64_t grain, void (*body)(void* argument, int64_t begin, int64_t end),
                void* argument);
} sr_kernel_call;
#define SR_KERNEL_CALL_SIZE_1_7 UINT32_C(88)

/// A request for the gradient of an op with respect to one operand. Values are numbers, as in sr_function_writer.
typedef struct sr_gradient_request {
  uint32_t struct_size;
  uint32_t operand; /* the index of this operand */
  const uint32_t* operands;
  const uint32_t* results;
  const uint32_t* result_gradients; /* 0: nothing flows back into that result */
  const sr_attribute* attributes;   /* in the order in which the op declares them */
  uint32_t operand_count;
  uint32_t result_count;
  uint32_t attribute_count;
  uint32_t attribute_stride;
} sr_gradient_request;
#define SR_GRADIENT_REQUEST_SIZE_1_7 UINT32_C(56)

/// An operand of an op. `plugins check` draws its elements for tests.
typedef struct sr_operand {
  uint32_t struct_size;
  uint32_t element; /* SR_ELEMENT_F32 or ..._I32 */
  /* Checks draw elements from [low, high). If both are 0: real numbers from the normal distribution; the integer 0. */
  double low;
  double high;
} sr_operand;
#define SR_OPERAND_SIZE_1_7 UINT32_C(24)

/// Declares an attribute of an op. Every call of the op must give it. Real numbers are finite.
typedef struct sr_attribute_spec {
  uint32_t struct_size;
  uint32_t type; /* SR_ATTRIBUTE_... */
  const char* name;
  const char* help;    /* one line */
  int64_t min_integer; /* bounds of an integer, inclusive; both 0: none */
  int64_t max_integer;
  const char* const* choices; /* of a text; none: any text */
  uint32_t choice_count;
  uint32_t reserved; /* zero */
} sr_attribute_spec;
#define SR_ATTRIBUTE_SPEC_SIZE_1_7 UINT32_C(56)

/// An op that the model brings. Only this model can call it, by its name.
///
/// `rule` says which loops (factors) the op has, and so how it can be split: "b t k, k n -> b t n; reduced k" is a
/// product of matrices. The names before the arrow are the factors of each operand's dimensions, those after it the
/// factors of each result's; a scalar is ".". "b*" stands for any number of dimensions: those that the first operand
/// with "b*" has in addition to its named ones. A factor that is split has one of these classes:
///  - pass-through, if nothing is said: each shard of the operands gives that shard of the results. The factor is in
///    every result;
///  - "reduced k", "reduced k (max)" or "(min)": shards give parts of a sum, maximum or minimum. The factor is in no
///    result;
///  - "whole k": the factor is not split, because each result needs all of it.
/// "y[-1..1] x -> y x" has a window: index y of the result reads the indices y - 1 to y + 1 of the operand. With
/// "2y[0..1]" it reads 2y and 2y + 1. With "y/2[-1..0]" it reads from (y - 1) / 2, rounded up, to y / 2, rounded down.
/// The factor is pass-through. If an operand has the factor without a window, that gives its size. Otherwise the size
/// follows from the operand's dimension, which has as many indices as y, 2y or y / 2. A kernel gets the indices that
/// its results read, except those outside of the whole operand.
/// Kernels get shards, with the place of each in its whole tensor. A shard can be empty. If a reduced factor is empty,
/// the results must be the value that changes no sum, maximum or minimum: 0, -infinity or infinity.
///
/// The kernels, `scratch_bytes` and `gradient` are pure: they depend on their arguments alone, and free what they
/// allocate. Kernels are GROUP, the others INIT.
typedef struct sr_model_op {
  uint32_t struct_size;
  uint32_t min_operands; /* a call may leave out operands after the first min_operands; 0: none */
  const char* name;      /* [a-z][a-z0-9_]*, not the name of an op that shardrun has */
  const char* help;      /* one line: the results in terms of the operands */
  const char* rule;
  const sr_operand* operands; /* as many as `rule` has */
  /// The element types of results: SR_ELEMENT_...; 0: the type of the first operand with real numbers, which in mixed
  /// precision can have fewer bits outside of the op. NULL: 0 for all.
  const uint32_t* result_elements;
  const sr_attribute_spec* attributes;
  uint32_t operand_count;
  uint32_t operand_stride;
  uint32_t result_count; /* the length of result_elements */
  uint32_t attribute_count;
  uint32_t attribute_stride;
  uint32_t example_count;
  uint32_t example_stride;
  uint32_t reserved;           /* zero */
  const sr_attribute* example; /* for checks: a value of each attribute */
  const char* sizes;           /* for checks: sizes of factors, as "c=3 k=8"; a check chooses the others; may be NULL */
  /// Returns the bytes of `scratch` that a kernel needs for these tensors, whose `data` is NULL. NULL: it needs none.
  uint64_t (*scratch_bytes)(void* self, const sr_kernel_call* call);
  /// Computes the results in float32. Writes every element, with the same bits for any number of threads.
  int32_t (*kernel)(void* self, const sr_kernel_call* call, sr_error* error);
  /// The same in float64, directly by the formula. `shardrun verify` compares with it.
  int32_t (*kernel_f64)(void* self, const sr_kernel_call* call, sr_error* error);
  /// Writes ops that compute the gradient with respect to an operand, of the operand's type. It uses only `call` and
  /// `type_of` of the table. It leaves `*gradient` 0 if the gradient is zero. NULL: a model that differentiates through
  /// the op is refused.
  int32_t (*gradient)(void* self, const sr_gradient_request* request, const sr_function_writer* writer,
                      uint32_t* gradient, sr_error* error);
} sr_model_op;
#define SR_MODEL_OP_SIZE_1_7 UINT32_C(136)

#define SR_CONFIG_NULL UINT32_C(1)
#define SR_CONFIG_BOOLEAN UINT32_C(2)
#define SR_CONFIG_NUMBER UINT32_C(3)
#define SR_CONFIG_TEXT UINT32_C(4)

/// A value of a config.json in a folder of Hugging Face's libraries. Since 1.9, like all below except sr_model itself.
typedef struct sr_config_value {
  uint32_t struct_size;
  uint32_t type;    /* SR_CONFIG_... */
  const char* key;  /* nested keys are joined by `.`, and places in lists are numbers: "rope_scaling.factor" */
  const char* text; /* as in JSON; for a string: its characters */
} sr_config_value;
#define SR_CONFIG_VALUE_SIZE_1_9 UINT32_C(24)

/// Through this, a model says what a config.json means. Every function is INIT and copies its arguments.
typedef struct sr_config_reader {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  /// Sets an option of the model, as the job file would.
  int32_t (*set_option)(void* self, const char* name, const char* value, sr_error* error);
  /// Says that the model knows this key, because options follow from the key or because it changes nothing. The host
  /// refuses a config.json with a key that the model does not know.
  int32_t (*know)(void* self, const char* key, sr_error* error);
} sr_config_reader;
#define SR_CONFIG_READER_SIZE_1_9 UINT32_C(32)

/// Through this, a model writes a config.json. INIT; copies its argument.
typedef struct sr_config_writer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  int32_t (*add)(void* self, const sr_config_value* value, sr_error* error);
} sr_config_writer;
#define SR_CONFIG_WRITER_SIZE_1_9 UINT32_C(24)

/// A part of a tensor along one dimension: `size` indices from `first` on. If both are 0, it is the whole tensor.
typedef struct sr_part {
  uint32_t struct_size; /* this struct is part of another, so its size never changes */
  uint32_t dim;
  int64_t first;
  int64_t size;
} sr_part;

#define SR_NAME_TRANSPOSED UINT32_C(1) /* the tensor's part has two dimensions, which are swapped */

/// The name that a state, or a part of one, has in a folder of Hugging Face's libraries. The elements of `part` of the
/// folder's tensor (transposed, if `flags` say so) are those of `state_part`, in row-major order. Shapes can differ.
typedef struct sr_tensor_name {
  uint32_t struct_size;
  uint32_t flags;       /* SR_NAME_... */
  const char* state;    /* NULL: tensors called `name`, where * is any run of characters, are left out */
  const char* name;     /* of the folder's tensor */
  const int64_t* shape; /* of the folder's tensor */
  uint32_t rank;
  uint32_t reserved; /* zero */
  sr_part part;
  sr_part state_part;
} sr_tensor_name;
#define SR_TENSOR_NAME_SIZE_1_9 UINT32_C(88)

/// Through this, a model lists the names of tensors. INIT; copies its argument.
typedef struct sr_tensor_namer {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  void* self;
  int32_t (*add)(void* self, const sr_tensor_name* name, sr_error* error);
} sr_tensor_namer;
#define SR_TENSOR_NAMER_SIZE_1_9 UINT32_C(24)

/// The functions of a plugin of SR_KIND_MODEL. All are pure and deterministic: every rank calls them with the same
/// input and must get the same graph. So they must not read a clock, file, environment, address or random number. They
/// return SR_INVALID if the user has to change the job; sr_error.setting then names the setting.
typedef struct sr_model {
  uint32_t struct_size;
  uint32_t data;    /* bits: the kinds of data (SR_DATA_...) for `loss`, and for `iterate`; none: it takes no data */
  const char* help; /* one line: what it is */
  const sr_function* functions;
  uint32_t function_count;
  uint32_t function_stride;
  /// INIT. Declares the states of the model for these options.
  int32_t (*declare)(void* self, const sr_model_job* job, const sr_state_writer* writer, sr_error* error);
  /// INIT. Writes one function.
  int32_t (*write_function)(void* self, const sr_model_job* job, const sr_function_request* request,
                            const sr_function_writer* writer, sr_error* error);
  const sr_model_op* ops; /* those that the model brings */
  uint32_t op_count;
  uint32_t op_stride;
  /// Since 1.9, like all that follows. The names of this model under `architectures` in a config.json, separated by
  /// spaces. NULL: the model can neither be read from such folders nor written to them, and the next three may be NULL.
  const char* architectures;
  /// INIT. Sets the options that make this model the one that a config.json describes.
  int32_t (*read_config)(void* self, const sr_config_value* values, uint32_t count, uint32_t stride,
                         const sr_config_reader* reader, sr_error* error);
  /// INIT. Writes a config.json from which read_config would set these options. The host adds the element type.
  int32_t (*write_config)(void* self, const sr_model_job* job, const sr_config_writer* writer, sr_error* error);
  /// INIT. Lists the names that the parameters have in such folders. If a folder has none of these names, the host
  /// assumes that the folder's names lack the part before the first dot.
  int32_t (*name_tensors)(void* self, const sr_model_job* job, const sr_tensor_namer* namer, sr_error* error);
} sr_model;
#define SR_MODEL_SIZE_1_7 UINT32_C(64)

#ifdef __cplusplus
}
#endif
